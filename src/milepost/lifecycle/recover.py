"""Choose the generation to go on from: the newest that is live, complete, healthy and verifies, or the one asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.lifecycle.retain import rank
from milepost.lifecycle.verify import Blobs, check_generation, no_such_generation
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import View
from milepost.records import Manifest
from milepost.store.base import Store

Which: TypeAlias = Literal["latest", "best", "never"] | int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Say why a generation was not taken."""

    number: int
    kind: Literal["damaged", "unreadable", "unhealthy", "kills-loader"]
    reason: str

    def __str__(self) -> str:
        return f"generation {self.number} {self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold the generation to load, and what was passed over on the way to it."""

    manifest: Manifest | None
    """None: the run has no generation at all, or the caller wants to start anew."""
    skipped: tuple[Skipped, ...] = ()
    cleared: tuple[int, ...] = ()
    """Generations marked ``damaged`` that verify now."""
    checked_bytes: int = 0


def choose(
    store: Store,
    view: View,
    which: Which = "latest",
    *,
    by: str | None = None,
    mode: Literal["max", "min"] = "max",
    full: bool = True,
    rejected: tuple[Skipped, ...] = (),
) -> Choice:
    """Return the generation to load. ``rejected`` ones failed while they were loaded, and are not tried again.

    Raises `CorruptError` (kind ``nothing-valid``) where data exists but none of it may be loaded: that is not a fresh
    start. Raises `NotFoundError` if a number is asked for that is not live.
    """
    _check_which(which)
    if which == "never" or (isinstance(which, str) and not (view.live or view.unreadable)):
        return Choice(None)
    gone = [Skipped(view.lost, "unreadable", "LATEST tells of it, but its manifest is gone")] if view.lost else []
    unreadable = [Skipped(number, "unreadable", why) for number, why in sorted(view.unreadable.items(), reverse=True)]
    skipped = [*rejected, *(skip for skip in (*gone, *unreadable) if skip not in rejected)]
    blobs, cleared = Blobs(store, full=full), []
    refused = {skip.number for skip in rejected}
    for number in _in_order(store, view, which, by, mode):
        if number in refused:
            continue
        reason = _refuse(view, number, which)
        found = reason or _sound(store, number, blobs)
        if isinstance(found, Manifest):
            if number in view.marks:
                cleared.append(number)
            return Choice(found, tuple(skipped), tuple(cleared), blobs.read_bytes)
        skipped.append(found)
    raise _nothing_valid(store, view, which, skipped)


def _in_order(store: Store, view: View, which: Which, by: str | None, mode: Literal["max", "min"]) -> list[int]:
    # Only what the head's state goes back to: a live generation beside that line is what a rollback left behind (rule 27).
    newest_first = sorted(view.line, reverse=True)
    # A generation that was saved in a hurry, without replay, comes after every complete one, unless it is asked for by number.
    usual = sorted(newest_first, key=lambda number: not view.live[number].complete)
    if which == "latest":
        return usual
    if which == "best":
        if by is None:
            raise UsageError('which="best" needs to know the metric', kind="no-metric", hint='Keep(best=1, by="eval/return")')
        ranked = rank(view.line, by, mode)
        if not ranked:
            raise NotFoundError(
                "no generation carries this metric", kind="no-metric", hint=f"milepost ls {store.url}", root=store.url, metric=by
            )
        return list(ranked)
    assert isinstance(which, int)
    if which in view.unreadable:
        return []
    if which not in view.live:
        raise no_such_generation(store, which)
    return [which]


def _check_which(which: Which) -> None:
    if which not in ("latest", "best", "never") and (isinstance(which, bool) or not isinstance(which, int)):
        raise UsageError(
            'which is "latest", "best", "never" or a number', kind="bad-which", hint='resume(which="latest")', which=which
        )


def _refuse(view: View, number: int, which: Which) -> Skipped | None:
    mark = view.marks.get(number)
    if mark is not None and mark.kind == "kills-loader":
        return Skipped(number, "kills-loader", mark.reason)
    summary = view.live[number]
    if not summary.healthy and which != number:
        return Skipped(number, "unhealthy", f"not finite: {', '.join(summary.nonfinite[:3])}")
    return None


def _sound(store: Store, number: int, blobs: Blobs) -> Manifest | Skipped:
    name = layout.manifest(number)
    try:
        manifest = decode_manifest(store.read(name), name)
    except CorruptError as error:
        return Skipped(number, "unreadable", error.message)
    problems = check_generation(manifest, blobs)
    return Skipped(number, "damaged", "; ".join(map(str, problems))) if problems else manifest


def _nothing_valid(store: Store, view: View, which: Which, skipped: list[Skipped]) -> CorruptError:
    others = ", ".join(str(number) for number in sorted(view.live.keys() - view.line.keys(), reverse=True))
    return CorruptError(
        "there are generations, but none that may be loaded; this is not taken for a fresh start\n  "
        + "\n  ".join(map(str, skipped)),
        kind="nothing-valid",
        hint=f'milepost verify {store.url} names the damage; resume(which="never") or milepost reset {store.url} starts anew',
        root=store.url,
        which=which,
        left_behind_but_there=others or None,
    )
