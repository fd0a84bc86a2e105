"""Decide which batches are trained: once each on the surviving branch, or dropped with a reason. No clock, no store, no bytes."""
