"""Delete what a run need not keep, between two of its processes: claim it, publish what stays, and only then delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.engine.opening import Opened, open_session
from milepost.engine.redact import redact_the_log
from milepost.engine.relief import hold_ballast, trim
from milepost.errors import ConflictError, CorruptError
from milepost.lifecycle.collect import Plan, plan_of
from milepost.lifecycle.recover import choose
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View, read
from milepost.records import Manifest, Summary
from milepost.store.base import Store


@dataclass(frozen=True, slots=True)
class Collected:
    """Say what a collection did."""

    plan: Plan
    trimmed: Summary | None
    """The generation that was published to say what stays; None where no generation had to go."""
    generations: tuple[int, ...]
    """Those whose manifests are gone."""
    files: int
    freed_bytes: int


def collect(
    store: Store,
    clock: Clock,
    keep: Keep | None = None,
    *,
    take_over: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Retire the generations that ``keep`` does not want, and delete what no generation stands on.

    The newest is published again with a shorter list of what it keeps (a trim, rule 16), and only then anything is deleted.
    Where there is nothing to do, nothing is claimed and nothing published. Raises `ConflictError` while the run is being
    trained, and `CorruptError` if the newest generation is damaged: then an older one may be all there is.
    """
    redact_the_log()
    view = read(store)
    plan = plan_of(store, view, keep)
    if plan.nothing:
        return Collected(plan, None, (), 0, 0)
    if _dropped(plan, view):
        _check_newest(store, view, progress)
    before = _sizes(store)
    with store.guard(wait_s=0.0, take_over=take_over):
        # To claim the root is to sweep it: what no generation stands on, and what is dead already, goes here (rule 8).
        opened = open_session(store, clock, keep or Keep(), {}, incarnation=clock.nonce())
        trimmed = _trim(opened, view, keep)
    after = _sizes(store)
    gone = before.keys() - after.keys()
    generations = tuple(sorted(number for name in gone if (number := layout.generation_number(name)) is not None))
    return Collected(plan, trimmed, generations, len(gone), sum(before[name] for name in gone))


def _dropped(plan: Plan, view: View) -> tuple[int, ...]:
    return tuple(number for number in plan.going if number in view.live)


def _check_newest(store: Store, view: View, progress: Callable[[int], None] | None) -> None:
    """Raise unless a resume would take the newest it can: history is not given away for a damaged generation."""
    try:
        choice = choose(store, view, progress=progress)
    except CorruptError:
        _check_unchanged(store, view, read(store))
        raise
    sound = choice.manifest.number if choice.manifest else 0
    damaged = [skip.number for skip in choice.skipped if skip.kind in ("damaged", "unreadable") and skip.number > sound]
    if damaged:
        # Or it has been retired while it was read: a trainer is at work, and that is no damage (rule 20).
        _check_unchanged(store, view, read(store))
        raise CorruptError(
            "the newest generation is damaged; until that is settled nothing older is deleted",
            kind="damaged-head",
            hint=f"train on, or milepost rollback {store.url} {sound}: either makes a sound one the newest",
            root=store.url,
            damaged=", ".join(map(str, damaged)),
            newest_sound=sound,
        )


def _check_unchanged(store: Store, seen: View, view: View) -> None:
    """Raise `ConflictError` if the newest generation of ``view`` is not the one that was looked at."""
    newest, looked_at = view.head, seen.head
    if newest is not None and (looked_at is None or newest.write_id != looked_at.write_id):
        raise ConflictError(
            "another process saved to the run meanwhile; no generation was retired",
            kind="changed-meanwhile",
            hint="look again, and run it once more",
            root=store.url,
            newest=newest.number,
        )


def _trim(opened: Opened, seen: View, keep: Keep | None) -> Summary | None:
    """Publish what stays, and delete the rest. Judged by the claim's own view: only what it shows counts."""
    session, view = opened.session, opened.claimed.view
    if view.head is None:
        return None
    _check_unchanged(session.store, seen, view)
    going = _dropped(plan_of(session.store, view, keep), view)
    if not going:
        return None
    session.build_on(load_record(session.store, layout.manifest(view.head.number), Manifest))
    trim(session, going)
    hold_ballast(session)
    return session.base


def _sizes(store: Store) -> dict[str, int]:
    entries = [*store.list(layout.BLOBS), *store.list(layout.GENERATIONS)]
    return {entry.name: entry.size_bytes for entry in entries}
