"""Say who is well, who has failed, and how much is to be started again. No clock, no processes: what was heard comes in."""
