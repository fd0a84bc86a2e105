"""Find the generation that somebody means by ``latest``, ``best``, ``latest~2``, ``@12000``, ``g000042`` or ``42``."""

from __future__ import annotations

import re
from typing import Literal

from milepost.errors import NotFoundError, UsageError
from milepost.lifecycle.retain import originals, rank
from milepost.publish.view import View
from milepost.records import Summary
from milepost.text import name_of

FORMS = "latest, latest~2, best, best:METRIC, best:METRIC:min, @STEP, g000042 or 42"

_LONGEST = 200
_NUMBER = re.compile(r"g?0*(\d{1,18})$")
_VERSION = re.compile(r"v(\d{1,18})$", re.ASCII)
_BACK = re.compile(r"(.+)~(\d{1,18})$")
_STEP = re.compile(r"@(\d[\d_,]{0,30})$")
_BEST = re.compile(r"best(?::(.+?)(?::(min|max))?)?$")


def numbered(ref: str) -> int | None:
    """Return the number in ``g000042`` or ``42``, or None if ``ref`` has another form."""
    found = _NUMBER.match(ref)
    return int(found[1]) if found else None


def version_numbered(ref: str) -> int | None:
    """Return the number in ``v42``, a version of a checkpoint service; None for what is none."""
    found = _VERSION.match(ref)
    return int(found[1]) if found else None


def resolve(view: View, ref: str, root: str) -> Summary:
    """Return the live generation that ``ref`` means; `NotFoundError` if there is none, `UsageError` if ``ref`` makes no sense."""
    if view.head is None:
        raise NotFoundError(
            "the run has no generation yet",
            kind="nothing-saved",
            hint=f"milepost ls --all {root} shows what lies there",
            root=root,
        )
    back = _BACK.match(ref) if len(ref) <= _LONGEST else None
    if back:
        return _go_back(view, resolve(view, back[1], root), int(back[2]), ref, root)
    if ref == "latest":
        return view.head
    if best := _BEST.match(ref):
        return best_of(view, root, best[1], best[2])
    if step := _STEP.match(ref):
        return _at_step(view, int(re.sub("[_,]", "", step[1])), root)
    number = numbered(ref)
    if number is not None:
        return _by_number(view, number, root)
    raise UsageError("this does not name a generation", kind="bad-ref", hint=f"one of {FORMS}", ref=ref)


def best_of(view: View, root: str, metric: str | None = None, mode: str | None = None) -> Summary:
    """Return the best healthy live generation, by ``metric`` or by what the training script's ``Keep`` said."""
    recorded = recorded_rule(view)
    by = metric or (recorded[0] if recorded else None)
    if by is None:
        raise UsageError(
            "the run does not say which metric decides what is best",
            kind="no-best-metric",
            hint=f"name one: best:METRIC ({_metrics(view)})",
            root=root,
        )
    way = mode or (recorded[1] if recorded and recorded[0] == by else "max")
    ranked = rank(view.line, by, "min" if way == "min" else "max")
    if not ranked:
        raise NotFoundError(
            "no healthy generation carries a value of this metric",
            kind="no-such-metric",
            hint=f"name another: best:METRIC ({_metrics(view)})",
            root=root,
            metric=by,
        )
    return view.live[ranked[0]]


def recorded_rule(view: View) -> tuple[str, Literal["max", "min"]] | None:
    """Return the metric and the direction that the newest writer with such a rule had in its ``Keep``, or None."""
    newest_first = (view.live[number] for number in sorted(view.live, reverse=True))
    return next(((summary.best_by, summary.best_mode) for summary in newest_first if summary.best_by), None)


def _metrics(view: View) -> str:
    names = sorted({name for summary in view.live.values() for name in summary.metrics})
    return "known: " + ", ".join(names) if names else "no generation carries any"


def _go_back(view: View, start: Summary, count: int, ref: str, root: str) -> Summary:
    """Go ``count`` generations back from ``start``. A trim is not one of its own: it repeats the one before it."""
    order = sorted(originals(view.live), reverse=True)
    older = [start.number, *(number for number in order if number < start.number)]
    if count >= len(older):
        raise NotFoundError(
            "the run does not go back that far",
            kind="no-such-generation",
            hint=f"milepost ls {root} shows what there is",
            root=root,
            ref=ref,
            oldest=name_of(older[-1]),
        )
    return view.live[older[count]]


def _at_step(view: View, step: int, root: str) -> Summary:
    there = [number for number, summary in view.live.items() if summary.step == step]
    if there:
        return view.live[max(there)]
    steps = sorted({summary.step for summary in view.live.values()})
    raise NotFoundError(
        "no live generation was saved at this step",
        kind="no-such-generation",
        hint=f"nearest: @{min(steps, key=lambda known: abs(known - step))}; milepost ls {root} shows all",
        root=root,
        step=step,
    )


def _by_number(view: View, number: int, root: str) -> Summary:
    if number in view.live:
        return view.live[number]
    raise NotFoundError(
        "there is no such live generation",
        kind="no-such-generation",
        hint=f"milepost ls --all {root} shows what there is",
        root=root,
        generation=name_of(number),
        because=_why_not(view, number),
    )


def _why_not(view: View, number: int) -> str:
    if number in view.unreadable:
        return f"its manifest cannot be read: {view.unreadable[number]}"
    if number in view.foreign:
        return "it belongs to another run"
    if number in view.void:
        return "it is void: its writer had been fenced when it was published"
    if number in view.listing.summaries:
        return "it has been retired"
    return "no manifest has this number"
