"""Tell a part of a version against the same part of another: who offers it, who applies it, when the whole is less."""
