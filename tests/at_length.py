"""Say how much is tried: `make test` tries enough to be believed; `make test-all` sets ``MILEPOST_AT_LENGTH`` and tries more."""

from __future__ import annotations

import os

AT_LENGTH = bool(os.environ.get("MILEPOST_AT_LENGTH"))


def examples(few: int, many: int) -> int:
    """Return how many examples a test makes up, in short and at length."""
    return many if AT_LENGTH else few
