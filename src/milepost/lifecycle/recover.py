"""Choose the generation to go on from: the newest that is live, complete, healthy and verifies, or the one asked for.

Where none is whole, a resume may still take the newest of which everything essential verifies; where only some components
are wanted, the newest of which these verify.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.lifecycle.blobs import Blobs
from milepost.lifecycle.retain import rank
from milepost.lifecycle.sealed import GONE
from milepost.lifecycle.verify import Problem, check_generation, no_such_generation
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View
from milepost.records import Manifest
from milepost.store.base import Store
from milepost.text import plain

Which: TypeAlias = Literal["latest", "best", "never"] | int
Spare: TypeAlias = Callable[[str], bool]
"""Say of a component whether a resume may leave it as it is in the live state."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Say why a generation was not taken."""

    number: int
    kind: Literal["damaged", "unreadable", "unhealthy", "kills-loader"]
    reason: str
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Which components the damage touches, and how; empty where that is not known."""
    sound: tuple[str, ...] = ()
    """Which of its components verified."""

    def __str__(self) -> str:
        return f"generation {self.number} {self.kind}: {plain(self.reason)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold the generation to load, and what was passed over on the way to it."""

    manifest: Manifest | None
    """None: the run has no generation at all, or the caller wants to start anew."""
    skipped: tuple[Skipped, ...] = ()
    cleared: tuple[int, ...] = ()
    """Generations marked ``damaged`` that verify now."""
    checked_bytes: int = 0
    damage: Skipped | None = None
    """What is wrong with the generation itself, where none is whole: its damaged components are not to be loaded."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """Hold a candidate that can be read, and what is wrong with its blobs."""

    manifest: Manifest
    problems: tuple[Problem, ...]

    def skipped(self, known: Iterable[Skipped] = ()) -> Skipped:
        """Return why it is not taken as a whole; ``known`` is what a load of it had found before."""
        number = self.manifest.number
        damaged = {name: f"{problem.name}: {problem.problem}" for problem in self.problems for name in problem.components}
        damaged |= {name: how for skip in known for name, how in skip.damaged.items()}
        sound = tuple(component.name for component in self.manifest.components if component.name not in damaged)
        reasons = [*map(str, self.problems), *(skip.reason for skip in known)]
        return Skipped(number, "damaged", "; ".join(reasons), damaged, sound)


def choose(
    store: Store,
    view: View,
    which: Which = "latest",
    *,
    by: str | None = None,
    mode: Literal["max", "min"] = "max",
    full: bool | Literal["doubted"] = True,
    rejected: tuple[Skipped, ...] = (),
    parts: Collection[str] | None = None,
    spare: Spare | None = None,
    progress: Callable[[int], None] | None = None,
) -> Choice:
    """Return the generation to load. ``rejected`` ones failed while they were loaded, and are not tried again.

    With ``parts`` only these components are looked at, and nobody minds what the others are like. Without ``full`` bytes
    are verified by whoever loads them; with ``full="doubted"`` that goes for a generation which nothing speaks against: it
    is not marked as damaged, and none that was preferred to it turned out to be. With ``spare`` a generation of which only
    components were damaged that it answers True for is taken where no other is whole (B8): never before an older one that is.

    Raises `CorruptError` (kind ``nothing-valid``) where data exists but none of it may be loaded: that is not a fresh
    start. Raises `NotFoundError` if a number is asked for that is not live.
    """
    _check_which(which)
    if which == "never" or (isinstance(which, str) and not (view.live or view.unreadable)):
        return Choice(None)
    gone = [Skipped(view.lost, "unreadable", "LATEST tells of it, but its manifest is gone")] if view.lost else []
    unreadable = [Skipped(number, "unreadable", why) for number, why in sorted(view.unreadable.items(), reverse=True)]
    skipped = [*rejected, *(skip for skip in (*gone, *unreadable) if skip not in rejected)]
    quick, thorough = (Blobs(store, full=whole, progress=progress) for whole in (False, True))
    order = _in_order(store, view, which, by, mode)
    refused = {skip.number for skip in rejected}
    looked: dict[int, _Looked] = {}
    for number in order:
        if number in refused:
            continue
        whole = full is True or (full == "doubted" and _is_doubted(view, number, skipped, parts))
        found = _refuse(view, number, which) or _look(store, number, thorough if whole else quick, whole, parts)
        if isinstance(found, Skipped):
            skipped.append(found)
        elif found.problems:
            damage = found.skipped()
            if spare is not None and parts is None and not damage.damaged:
                # A file's header is hit, or its padding: all that was saved is there, and nothing older has more of it.
                return Choice(found.manifest, tuple(skipped), (), thorough.read_bytes, damage)
            looked[number] = found
            skipped.append(damage)
        else:
            cleared = (number,) if whole and number in view.marks and parts is None else ()
            return Choice(found.manifest, tuple(skipped), cleared, thorough.read_bytes)
    if spare is not None and parts is None:
        partly = _partly(store, order, looked, skipped, rejected, thorough, spare)
        if partly is not None:
            return partly
    raise _nothing_valid(store, view, which, skipped, parts)


def _partly(
    store: Store,
    order: Iterable[int],
    looked: Mapping[int, _Looked],
    skipped: Iterable[Skipped],
    rejected: Iterable[Skipped],
    blobs: Blobs,
    spare: Spare,
) -> Choice | None:
    """Return the first candidate that has nothing wrong with it but components to spare."""
    for number in order:
        known = [skip for skip in rejected if skip.number == number]
        if any(skip.kind != "damaged" or not skip.damaged for skip in known):
            continue  # its evaluation failed, say, or nobody knows where it is damaged
        # What turned bad while it was loaded had verified before: look again what else has.
        found = looked.get(number) or (_look(store, number, blobs, True, None) if known else None)
        if not isinstance(found, _Looked):
            continue
        damage = found.skipped(known)
        if all(spare(name) for name in damage.damaged):
            others = tuple(skip for skip in skipped if skip.number != number)
            return Choice(found.manifest, others, (), blobs.read_bytes, damage)
    return None


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
        raise UsageError('which is "latest", "best", "never" or a number', kind="bad-which", hint='which="latest"', which=which)


def _refuse(view: View, number: int, which: Which) -> Skipped | None:
    mark = view.marks.get(number)
    if mark is not None and mark.kind == "kills-loader":
        return Skipped(number, "kills-loader", mark.reason)
    summary = view.live[number]
    if not summary.healthy and which != number:
        return Skipped(number, "unhealthy", f"not finite: {', '.join(summary.nonfinite[:3])}")
    return None


def _is_doubted(view: View, number: int, skipped: Iterable[Skipped], parts: Collection[str] | None) -> bool:
    # Damage seldom comes alone: older generations stand on the same files. And one that was refused while it was loaded may
    # have spoilt a live component: the next is to be known to be sound before it is loaded over that.
    return any(skip.kind == "damaged" for skip in skipped) or (parts is None and number in view.marks)


def _look(store: Store, number: int, blobs: Blobs, full: bool, parts: Collection[str] | None) -> _Looked | Skipped:
    try:
        manifest = load_record(store, layout.manifest(number), Manifest)
    except CorruptError as error:
        return Skipped(number, "unreadable", error.message)
    except NotFoundError:
        # It was there when the root was listed. Who may be retiring meanwhile lists again; else somebody removed it.
        return Skipped(number, "unreadable", GONE)
    if parts is None:
        return _Looked(manifest, check_generation(manifest, blobs))
    # A blob that was cut off behind the weights still gives the weights: what is wanted is looked at, leaf by leaf.
    return _Looked(manifest, tuple(_damaged_parts(manifest, parts, blobs)) if full else ())


def _damaged_parts(manifest: Manifest, parts: Collection[str], blobs: Blobs) -> Iterable[Problem]:
    for component in manifest.components:
        for leaf in component.leaves if component.name in parts else ():
            blobs.count(leaf.size_bytes)
            if not blobs.is_sound(manifest, leaf):
                blob = manifest.blobs[leaf.blob].name
                yield Problem(blob, f"the bytes of {leaf.path} are not those that were saved", manifest.number, (component.name,))
                break


def _nothing_valid(store: Store, view: View, which: Which, skipped: list[Skipped], parts: Collection[str] | None) -> CorruptError:
    others = sorted(view.live.keys() - view.line.keys(), reverse=True)
    what = "none that may be loaded" if parts is None else "none of which these parts are sound"
    lines = (f"{skip}; sound: {', '.join(skip.sound)}" if skip.sound and parts is None else str(skip) for skip in skipped)
    usable = next((skip.sound for skip in skipped if skip.sound), ()) if parts is None else ()
    ways = [f"milepost verify {store.url} names the damage"]
    ways += [f"milepost rollback {store.url} {number} goes back to one that was left behind" for number in others[:1]]
    ways += [f"engine.resume(parts={[*usable]}) or milepost.load(..., parts=...) takes what is sound"] if usable else []
    ways.append(f'which="never" or milepost reset {store.url} starts anew')
    return CorruptError(
        f"there are generations, but {what}; this is not taken for a fresh start\n  " + "\n  ".join(lines),
        kind="nothing-valid",
        hint="; ".join(ways),
        root=store.url,
        which=which,
        parts=", ".join(parts) if parts is not None else None,
        left_behind_but_there=", ".join(map(str, others)) or None,
    )
