"""Bring a whole training back: all engines, data, counters and generators as one generation. See docs/recover.md."""
