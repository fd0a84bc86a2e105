"""Judge whether a run that was killed and resumed is the one that was left alone, and say where they part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from milepost.clock import Clock
from milepost.lifecycle.divergence import Apart, Side, divergences
from milepost.records import Manifest
from milepost.state.clocked import is_clocked
from milepost.store.local import LocalStore
from milepost.supervise.watching import Root, Watch

_RNG = re.compile(r"(?:[^/]+/)?rng/[^/]+/[^/]+")


@dataclass(frozen=True, slots=True)
class Parting:
    """Say where two runs part."""

    root: Root
    """Of the other run."""
    one: Manifest
    other: Manifest
    apart: tuple[Apart, ...]
    resumed_from: int | None = None
    """Set where it is the first save after a resume: the step of the generation that was resumed from."""
    steps: tuple[int, int] | None = None
    """Set where the runs did not even end at the same step."""
    shown: Parting | None = None
    """A later one of which the data is still there, where this one's was retired."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Say what was compared, and the first parting if there is one."""

    compared: int
    """How many generations of the other run were compared with one of the same step."""
    parting: Parting | None
    is_same_at_the_end: bool
    missing: tuple[str, ...] = ()
    """What the last generations of the other run say that they do not hold."""
    idle: tuple[str, ...] = ()
    """Generators that were neither seeded nor drawn from: each run has its own, and they were left out."""


def compare(one: Watch, other: Watch, clock: Clock, *, ends: bool = True, since: Mapping[str, int] | None = None) -> Comparison:
    """Compare every generation of ``other`` with that of the same step in ``one``, oldest first, and the last with the last.

    Both have saved to the same roots. Without ``ends`` the last are not compared unless they are of the same step: the runs
    were stopped somewhere. ``since``: by root, the generation up to which what is the same proves nothing, and does not count.
    """
    found = [
        _roots(root, other.saved[name], clock, ends=ends, since=(since or {}).get(name, 0)) for name, root in one.saved.items()
    ]
    return Comparison(
        sum(each.compared for each in found),
        next((each.parting for each in found if each.parting), None),
        all(each.is_same_at_the_end for each in found),
        tuple(dict.fromkeys(missing for each in found for missing in each.missing)),
        tuple(dict.fromkeys(idle for each in found for idle in each.idle)),
    )


def _roots(left: Root, right: Root, clock: Clock, *, ends: bool, since: int) -> Comparison:
    idle = _idle(left, right)

    def ignore(path: str) -> bool:
        return is_clocked(path) or _generator(path) in idle

    def parting(olds: Sequence[Manifest], new: Manifest) -> Parting | None:
        apart: list[Apart] = []
        for old in olds:
            apart = divergences(_side(left, old, clock), _side(right, new, clock), ignore)
            if not apart:
                break
        steps = (old.step, new.step) if old.step != new.step else None
        return Parting(right, old, new, tuple(apart), _resumed_from(right, new), steps) if apart or steps else None

    pairs = [*_pairs(left, right)]
    last = right.manifests[max(right.manifests)]
    end = parting([left.manifests[max(left.manifests)]], last) if ends else parting(*pairs[-1]) if pairs else None
    partings = (found for pair in pairs if (found := parting(*pair)))
    first = next(partings, end)
    if first is not None and not (left.has(first.one.number) and right.has(first.other.number)):
        later = (each for each in (*partings, end) if each and left.has(each.one.number) and right.has(each.other.number))
        first = replace(first, shown=next(later, None))
    compared = len({new.number for _, new in pairs if new.number > since} | ({last.number} if ends else set()))
    return Comparison(compared, first, end is None, tuple(inexact(last)), tuple(sorted(idle)))


def _resumed_from(root: Root, manifest: Manifest) -> int | None:
    first = min(number for number, each in root.manifests.items() if each.term == manifest.term)
    base = root.manifests.get(base_of(manifest))
    return base.step if first == manifest.number and base is not None else None


def base_of(manifest: Manifest) -> int:
    """Return the number of the generation whose state went on to become this one; 0 if it began anew."""
    return manifest.parent if manifest.rollback_to is None else manifest.rollback_to


def _idle(left: Root, right: Root) -> frozenset[str]:
    """Return the generators in component ``rng`` that differ from the first save on, and in neither run from then on.

    A script that seeds torch and numpy has an unseeded ``random`` all the same, and most never draw from it.
    """
    runs = [[root.manifests[number] for number in sorted(root.manifests)] for root in (left, right)]
    moved = {_generator(path) for run in runs for path in _rng_paths(run[0], run[-1])}
    return frozenset(set(map(_generator, _rng_paths(runs[0][0], runs[1][0]))) - moved)


def _rng_paths(one: Manifest, other: Manifest) -> list[str]:
    found = divergences(Side(one), Side(other), lambda path: not _generator(path))
    return [path for apart in found for path in apart.paths if _generator(path)]


def _generator(path: str) -> str:
    """Return which generator a path of component ``rng`` belongs to, like ``rng/process/python``; else an empty text."""
    found = _RNG.match(path)
    return found[0] if found else ""


def inexact(manifest: Manifest) -> Iterator[str]:
    """Yield what a generation says of itself that it does not hold."""
    for part in manifest.components:
        if part.exactness != "exact":
            yield f"{part.name}: {part.exactness}{f': {part.reason}' if part.reason else ''}"


def _pairs(left: Root, right: Root) -> Iterator[tuple[list[Manifest], Manifest]]:
    """Yield each generation of ``right`` with those of the same moment of training: one of them it has to be.

    There may be several: a save that was due at the last step, and the one that the script makes at its end.
    """
    there: dict[tuple[int, int, int], list[Manifest]] = {}
    for _, manifest in sorted(left.manifests.items()):
        there.setdefault(_moment(manifest), []).append(manifest)
    for _, manifest in sorted(right.manifests.items()):
        if _moment(manifest) in there:
            yield there[_moment(manifest)], manifest


def _moment(manifest: Manifest) -> tuple[int, int, int]:
    # Stable-Baselines3 may begin again at step 0 in each learn(), and the end of one is another moment than its last boundary.
    return manifest.counters.get("learn", 0), manifest.step, manifest.counters.get("ended", 0)


def _side(root: Root, manifest: Manifest, clock: Clock) -> Side:
    return Side(manifest, LocalStore(root.path, clock) if root.has(manifest.number) else None)
