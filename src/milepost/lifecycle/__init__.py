"""Decide what happens to generations over time: when to save, what to keep, what verifies, where to resume from."""
