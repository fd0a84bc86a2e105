"""Decide what the service answers and does: events in, actions out. No sockets, no clock, no store, no bytes."""
