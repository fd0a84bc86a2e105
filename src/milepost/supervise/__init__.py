"""Start a user's own training command, watch its run root from outside, stop it, and start it again."""
