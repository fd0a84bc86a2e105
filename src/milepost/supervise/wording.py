"""Find the words of `milepost run`: what ended, what it cost, what comes next. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable

from milepost.supervise.causes import Cause, End
from milepost.supervise.policy import Decision
from milepost.supervise.roots import Newest
from milepost.text import name_of, name_of_signal


def shown(root: str) -> str:
    """Return a run root as somebody in this directory would write it."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return root
    return os.path.relpath(root, here) if root.startswith(f"{here}/") else root


def span(seconds: float) -> str:
    """Return a length of time for people.

    >>> span(0.13), span(6.2), span(250), span(7300)
    ('0.1s', '6s', '4m10s', '2h01m')
    """
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s") if seconds < 3 else f"{seconds:.0f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def how_ended(exit_code: int | None, number: int | None) -> str:
    """Return how a command ended, by its exit code or by the number of a signal."""
    return f"killed by {name_of_signal(number)}" if number is not None else f"exit code {exit_code}"


def ended(end: End, cause: Cause) -> str:
    """Return how an attempt ended, and why."""
    how = how_ended(end.exit_code, end.signal)
    says_no_more = cause.kind == "done" or cause.text == f"it ended with {how}"
    return f"{how} after {span(end.duration_s)}" + ("" if says_no_more else f": {cause.text}")


def standing(newest: Iterable[Newest], end: End) -> list[str]:
    """Return a line on each run root: what the next start would find."""
    found = [*newest]
    return [_standing(each, end.step if len(found) == 1 else -1) for each in found]


def _standing(each: Newest, step: int) -> str:
    if not each.number:
        return f"{shown(each.root)}: nothing saved yet"
    new = "" if each.is_new else ", and no progress"
    lost = f"; {step - each.step:,} steps lost" if step > each.step >= 0 else ""
    return f"{shown(each.root)}: {name_of(each.number)} (step {each.step:,}) is the newest{new}{lost}"


def retries(wanted: int, given: int | None) -> str:
    """Return what comes of it that a command says how often it is to be started again."""
    counts = "" if given is None else f"; max-failures {given} was given, and counts"
    return f"it wants {wanted} restart{'s' * (wanted != 1)} after failures of its own (retries){counts}"


def ahead(decision: Decision) -> str:
    """Return when it is started again, and by what right; or why it is not."""
    if decision.action != "restart":
        return f"is not started again: {decision.why}"
    return f"starts again {f'in {span(decision.wait_s)}' if decision.wait_s >= 0.05 else 'at once'}: {decision.why}"
