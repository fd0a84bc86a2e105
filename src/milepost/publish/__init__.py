"""Decide when bytes count: claim a root, publish, retire, pin and read generations.

The numbered rules that the comments cite are those of docs/INVARIANTS.md.
"""
