"""Decide which exports go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from milepost.errors import UsageError


def checked_keep(keep: int | None) -> int | None:
    """Return how many exports are kept; None keeps all. Raises `UsageError` (kind ``bad-keep``)."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise UsageError("not a number of exports to keep", kind="bad-keep", hint="keep=5; None keeps all", keep=keep)
    return keep


def to_remove(finished: Sequence[str], keep: int | None, made: str, busy: Collection[str] = ()) -> tuple[str, ...]:
    """Return which of the finished exports go, once ``made`` is one of them. ``finished`` is in the order of training.

    The one that was made last stays always: after a resume from an older step, ones of later steps may lie there, of a past that
    is no more. So do those that somebody is still reading, ``busy``.

    >>> to_remove(["a", "b", "c", "d"], 2, "d")
    ('a', 'b')
    >>> to_remove(["a", "b", "c", "d"], 1, "a")
    ('b', 'c', 'd')
    """
    if keep is None:
        return ()
    others = [name for name in finished if name != made]
    first_kept = max(0, len(others) - (keep - 1))
    return tuple(name for name in others[:first_kept] if name not in busy)
