"""Bring checkpoints that others have written into run roots: as generations that resume like any other. See docs/import.md."""
