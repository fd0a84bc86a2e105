"""Say a new version of the weights by what changed, exactly, and make it of an old one."""
