"""Judge one drilled run: what it has lost, whether it ends as the one that was left alone, and what was not as it has to be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from milepost.engine.beats import Beats
from milepost.publish import layout
from milepost.publish.view import View, read
from milepost.records import Manifest
from milepost.store.local import LocalStore
from milepost.supervise.drill_copy import Copied, check_root
from milepost.supervise.drill_measure import Cost, Mark, Strike, Way, cost, lost, passed_over, worst, writers_overlap
from milepost.supervise.drill_run import Followed, Run, Seen, Start
from milepost.supervise.judging import base_of, compare
from milepost.supervise.watching import Root, strays


@dataclass(frozen=True, slots=True)
class Bounds:
    """Say what each run has to hold; None: whatever it is."""

    rto_s: float | None = None
    rpo_steps: int | None = None
    rpo_s: float | None = None

    def missed(self, runs: Sequence[Drilled]) -> list[str]:
        """Return the names of the bounds that some run has missed, or of which it could not be told."""
        found = {"RTO": (self.rto_s, [run.rto_s for run in runs]), "RPO": (self.rpo_s, [run.rpo_s for run in runs])}
        found["RPO in steps"] = (self.rpo_steps, [run.rpo_steps for run in runs])
        return [name for name, (bound, values) in found.items() if bound is not None and not _holds(values, bound)]


NO_BOUNDS = Bounds()


def _holds(values: Sequence[float | None], bound: float) -> bool:
    highest = worst(values)
    return highest is not None and highest <= bound


@dataclass(frozen=True, slots=True)
class Drilled:
    """Say what came of one run."""

    number: int
    struck: bool
    kind: str
    """What happened, for programs."""
    what: str = ""
    """What was done to it, for people."""
    at_s: float = 0.0
    """When, after its start."""
    phase: str = ""
    step: int = 0
    """The last safe point before it."""
    generation: int | None = None
    from_step: int | None = None
    rpo_steps: int | None = None
    rpo_s: float | None = None
    rto_s: float | None = None
    since: str = ""
    """From when the time to recover is counted."""
    resumed_s: float | None = None
    caught_up_s: float | None = None
    lost: tuple[str, ...] = ()
    end: str = ""
    """``identical``, ``differs``, ``not deterministic``, ``not compared``, or ``not reached``."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured_by: str = "beats"
    """``beats``: at each safe point; ``generations``: at each save, so that RPO is at least that, and RTO at most."""
    marks: tuple[Mark, ...] = ()
    complaint: tuple[str, ...] = ()

    @classmethod
    def missed(cls, number: int, why: str) -> Drilled:
        """Return what there is to say of a run that was not struck."""
        return cls(number, struck=False, kind=why, end="not compared")

    @property
    def recovered(self) -> bool:
        """Return whether all is as it has to be, but for bounds."""
        return self.struck and not self.lost and not self.problems and self.end in ("identical", "not compared")

    @property
    def line(self) -> str:
        """Return one line about it."""
        if not self.struck:
            return {"nothing-to-fall-back-to": "not struck: there was one generation only"}.get(
                self.kind, "not struck: it ended first"
            )
        parts = [self.what]
        if self.from_step is not None:
            parts.append(f"went on from step {self.from_step:,}")
        if self.rto_s is not None:
            parts.append(f"trained on after {self.rto_s:.1f} s")
        parts += [f"end {self.end}", *(f"lost: {each}" for each in self.lost), *self.problems, *self.notes]
        return "; ".join(parts)


def undisturbed_fault(run: Run, copied: Sequence[Copied]) -> tuple[str, list[str]]:
    """Return why nothing can be tried on a command, from its undisturbed run, and the places that show it; else empty texts."""
    new = {name: first for name, root in run.watch.saved.items() if (first := _first_new(run, name, root)) is not None}
    if not new:
        # Whoever clears the environment, or has another milepost, saves past what is set for it.
        places = [] if run.here else [str(place.relative_to(run.work)) for place in strays(run.work)]
        places += [each.named for each in copied if _terms(check_root(each.named)) - _terms(each.at)]
        if not places and any(seen.beats.resumed for seen in run.starts[0].pulse.all):
            return "at-its-end", []
        return ("saved-elsewhere" if places else "never-saved"), places
    idle = [root for name, root in run.watch.saved.items() if name not in new]
    if idle:
        went = [f"saved to {run.watch.roots[name].original}" for name in new]
        return "another-root", [*(f"{root.original} was copied, and nothing was saved to it" for root in idle), *went]
    if any(base_of(first) == 0 for name, first in new.items() if run.copied.get(name)):
        return "never-resumed", []
    if copied and run.watch.step <= max(each.step for each in copied):
        return "at-its-end", []
    return ("saved-only-once", []) if run.watch.published < 2 else ("", [])


def _first_new(run: Run, name: str, root: Root) -> Manifest | None:
    return next((root.manifests[number] for number in sorted(root.manifests) if number > run.copied.get(name, 0)), None)


def _terms(root: Path) -> set[str]:
    return {entry.name for entry in (root / layout.TERMS).glob("*.json")}


def judge(number: int, run: Run, strike: Strike, followed: Followed, alone: Run, *, to_the_end: bool) -> Drilled:
    """Judge a run that was struck, and has been followed since."""
    start, struck = strike.going_on, strike.struck
    assert start is not None
    assert struck is not None
    views = {name: read(LocalStore(str(root.path), run.bench.clock)) for name, root in run.watch.saved.items()}
    ways, by = _ways(run, strike, start)
    costs = {name: cost(ways[name], strike, strike.reached.get(_run_id(run.watch.roots[name]), 0)) for name in ways}
    gone = [each for name in strike.acknowledged for each in _lost(run, name, strike, views[name], costs[name])]
    for name in ways:
        strike.notes += passed_over(costs[name].from_generation, run.watch.roots[name].manifests, strike.acknowledged[name])
    problems = [*strike.problems, *_problems(run, strike, start, followed, costs, views)]
    came_to_its_end = followed == "until" or (followed == "ended" and not start.exit_code)
    if followed == "ended" and came_to_its_end and not to_the_end and run.watch.step < alone.watch.step:
        came_to_its_end = False
        problems.append(f"started again it ended at step {run.watch.step:,}, before the {alone.watch.step:,} it was to come to")
    end = _end(run, strike, alone, to_the_end=to_the_end) if came_to_its_end else "not reached"
    if end == "not deterministic" and strike.restarts and not all(each.from_generation for each in costs.values()):
        end = "differs"  # begun anew, it has other generators that nobody seeded
    hardest = max(costs.values(), key=lambda each: each.rpo_steps if each.rpo_steps is not None else 1 << 62)
    values = list(costs.values())
    return Drilled(
        number,
        struck=True,
        kind=_kind(gone, problems, end),
        what=strike.what,
        at_s=(strike.at_ns - struck.began_ns) / 1e9,
        phase=strike.phase,
        step=max(strike.reached.values(), default=0),
        generation=hardest.from_generation,
        from_step=hardest.from_step,
        rpo_steps=hardest.rpo_steps,
        rpo_s=worst([each.rpo_s for each in values]),
        rto_s=worst([each.rto_s for each in values]),
        since=strike.since,
        resumed_s=worst([each.resumed_s for each in values]),
        caught_up_s=worst([each.caught_up_s for each in values]),
        lost=tuple(gone),
        end=end,
        problems=tuple(problems),
        notes=tuple(strike.notes),
        measured_by=by,
        marks=tuple(_marks(run, strike, values)),
        complaint=start.child.complaint() if start.exit_code else (),
    )


def _kind(gone: Sequence[str], problems: Sequence[str], end: str) -> str:
    if gone:
        return "generation-lost"
    return "not-recovered" if problems else {"differs": "end-differs", "not reached": "not-recovered"}.get(end, "recovered")


def _run_id(root: Root) -> str:
    return root.newest.run_id if root.newest else ""


def _ways(run: Run, strike: Strike, start: Start) -> tuple[dict[str, Way], str]:
    """Return what was seen of each root: by its engine's beats; if it gave none, by the generations that appeared."""
    assert strike.struck is not None
    before, after = strike.struck.pulse.of_runs(), start.pulse.of_runs()
    found, by = {}, "beats"
    for name in strike.acknowledged:
        root = run.watch.roots[name]
        steps = {manifest.number: manifest.step for manifest in root.manifests.values()}
        pulses = before.get(_run_id(root), []), after.get(_run_id(root), [])
        if not all(any(seen.beats.step >= 0 for seen in pulse) for pulse in pulses):
            by, pulses = "generations", (_appeared(root, 0, strike.at_ns), _appeared(root, strike.recovery_ns, 1 << 62))
        found[name] = Way(*pulses, steps, by_saves=by == "generations")
    return found, by


def _appeared(root: Root, from_ns: int, to_ns: int) -> list[Seen]:
    """Return what a root's generations tell as beats would."""
    pairs = zip(root.manifests.values(), root.appeared_ns, strict=True)
    new = [(manifest, at) for manifest, at in pairs if from_ns <= at < to_ns]
    base = base_of(new[0][0]) if new else 0
    return [
        Seen(at, Beats(0, "", each.run_id, count, each.step, "training", 0, base, each.number))
        for count, (each, at) in enumerate(new, 1)
    ]


def _lost(run: Run, name: str, strike: Strike, view: View, spent: Cost) -> Iterator[str]:
    root, damaged = run.watch.roots[name], strike.damaged.get(name, frozenset())
    published = {seen.beats.generation for start in run.starts for seen in start.pulse.of_runs().get(_run_id(root), [])} - {0}
    on = spent.from_generation if strike.restarts else None
    yield from lost(strike.acknowledged[name], damaged, view, on, root.manifests)
    yield from lost(published - strike.acknowledged[name], damaged, view, None, root.manifests)


def _problems(
    run: Run, strike: Strike, start: Start, followed: Followed, costs: dict[str, Cost], views: dict[str, View]
) -> Iterator[str]:
    if followed == "timed out":
        yield f"started again it had not ended after {run.timeout_s:g} s"
    elif start.exit_code and followed == "ended":
        yield f"started again it ended with exit code {start.exit_code}"
    for name, spent in costs.items():
        if strike.restarts and not spent.from_generation:
            yield f"it began anew, although {run.watch.roots[name].original} holds what it could have gone on from"
        if strike.saves_first and not strike.problems and spent.rpo_steps:
            yield f"it ended without having saved its last {spent.rpo_steps:,} steps"
        if strike.damaged.get(name) and not any(_told(run.watch.roots[name])):
            yield "it did not say that anything was damaged"
        if writers_overlap(views[name].live):
            yield f"two writers have published to {run.watch.roots[name].original}, each after the other"


def _told(root: Root) -> Iterator[bool]:
    """Yield of each resume whether it said that something was damaged."""
    for entry in sorted((root.path / layout.EVENTS).glob("*.jsonl")):
        for line in entry.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == "resumed":
                yield bool(event.get("skipped") or event.get("warnings") or event.get("inexact"))


def _end(run: Run, strike: Strike, alone: Run, *, to_the_end: bool) -> str:
    if run.watch.saved.keys() != alone.watch.saved.keys():
        return "differs"
    since = {name: max(numbers, default=0) for name, numbers in strike.acknowledged.items()}
    found = compare(alone.watch, run.watch, run.bench.clock, ends=to_the_end, since=since)
    if found.parting is None:
        return "identical" if found.compared else "not compared"
    parting = found.parting
    untouched = max(strike.acknowledged.get(parting.root.path.name, frozenset()), default=0)
    return "not deterministic" if parting.other.number <= untouched else "differs"


def _marks(run: Run, strike: Strike, costs: Sequence[Cost]) -> Iterator[Mark]:
    """Yield what happened, in the order of time."""
    first_ns = run.starts[0].began_ns

    def at(ns: int) -> float:
        return max(0.0, (ns - first_ns) / 1e9)

    marks = [Mark("start", at(start.began_ns)) for start in run.starts]
    marks += [Mark("ended", at(start.ended_ns)) for start in run.starts[-1:]]
    began = [seen.at_ns for seen in run.starts[0].pulse.all if seen.beats.phase == "training"]
    marks += [Mark("training", at(ns)) for ns in began[:1]]
    marks.append(Mark("struck", at(strike.at_ns), max(strike.reached.values(), default=None)))
    for root in run.watch.saved.values():
        marks += [
            Mark("saved", at(ns), manifest.step)
            for manifest, ns in zip(root.manifests.values(), root.appeared_ns, strict=True)
            if ns > first_ns
        ]
    for kind, values in (
        ("resumed", [each.resumed_s for each in costs]),
        ("trained", [each.rto_s for each in costs]),
        ("caught up", [each.caught_up_s for each in costs]),
    ):
        if (seconds := worst(values)) is not None:
            marks.append(Mark(kind, at(strike.recovery_ns) + seconds))  # type: ignore[arg-type]
    yield from sorted(marks, key=lambda mark: mark.at_s)
