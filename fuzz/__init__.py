"""Fuzz what reads files: `targets` are plain functions, `run` drives one with atheris, `corpus` is replayed by the tests."""
