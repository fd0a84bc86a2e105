"""Strike copies of somebody's run: how much is lost, how long does it take to recover, is the end the same?

`drill` is the story: one run is left alone, then each of the others begins from the same copy, is struck once at a moment of
its own, recovers, and is compared. The original run roots are read, and never written to.
"""

from __future__ import annotations

import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from milepost.engine.supervised import STOP
from milepost.lifecycle.grace import GRACE
from milepost.supervise.drill_copy import Copied, check_root, copy_root, place
from milepost.supervise.drill_judge import NO_BOUNDS, Bounds, Drilled, judge, undisturbed_fault
from milepost.supervise.drill_measure import Strike
from milepost.supervise.drill_run import Bench, Run
from milepost.supervise.drill_verbs import VERBS, Aim, Missed, Verb, reached
from milepost.supervise.group import adopting
from milepost.supervise.moments import Moment
from milepost.supervise.small_disk import Disk, GivenDisk, SmallDisk, check_disk

Outcome: TypeAlias = Literal["recovered", "missed its bounds", "not deterministic", "nothing proven", "failed"]

SAMPLE = (sys.executable, "-m", "milepost.supervise.drill_sample")
_TRIES = 3
_EVERY_THIRD = 3
_LEAST_HOLD_S = 3.0
_LEAST_BEGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """Say what is to be tried. With no ``command``, the built-in sample."""

    verb: Verb
    command: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    """What the command goes on from; none: it begins anew."""
    runs: int = 5
    timeout_s: float = 600.0
    for_s: float | None = None
    """Let the run that is left alone train so long from its first save, and the others to where it came; None: to their ends."""
    grace_s: float = 30.0
    here: Path | None = None
    bounds: Bounds = NO_BOUNDS
    disk: Path | None = None
    """An empty file system that may be filled, for ``diskfull``; None: one is made."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what came of it."""

    outcome: Outcome
    kind: str
    """Exactly what happened, for programs: kinds are added, never renamed."""
    request: Request
    copied: tuple[Copied, ...] = ()
    runs: tuple[Drilled, ...] = ()
    undisturbed_s: float = 0.0
    last_step: int = 0
    complaint: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(slots=True)
class Drill:
    """Hold what the runs of one drill share."""

    request: Request
    bench: Bench
    copied: tuple[Copied, ...]
    alone: Run
    disk: Disk | None


def drill(request: Request, bench: Bench) -> Verdict:
    """Run the drill. Takes one undisturbed run, and about one more for each of ``runs``.

    ``diskfull`` mounts a file system unless it is given a ``disk``: `milepost.supervise.small_disk.enter` has to come first.
    Raises `UsageError` (kinds ``no-such-command``, ``no-disk-of-its-own``), `NotFoundError` (kind ``no-such-run``) before
    anything is started.
    """
    with adopting():  # whoever leaves the session of the command is found all the same
        return _drill(request, bench)


def _drill(request: Request, bench: Bench) -> Verdict:
    for named in request.roots:
        check_root(named)
    if request.verb == "diskfull" and request.disk:
        check_disk(request.disk)
    (bench.scratch / "copied").mkdir()
    # All runs begin from one copy: the original may go on meanwhile.
    copied = tuple(
        copy_root(check_root(named), bench.scratch / "copied" / str(index), bench.clock, named)
        for index, named in enumerate(request.roots)
    )
    for each in copied:
        how = f"{each.linked} files linked, {each.copied} copied"
        bench.say(f"copied {each.named}: newest generation of step {each.step:,} ({how})")
    alone = _run("alone", request, bench, copied)
    drilled = Drill(request, bench, copied, alone, None)
    try:
        if verdict := _alone(drilled):
            return verdict
        if request.verb == "diskfull":
            holds_bytes = sum(file.stat().st_size for file in alone.roots.rglob("*") if file.is_file())
            drilled.disk = GivenDisk(request.disk) if request.disk else SmallDisk(bench.scratch / "disk", holds_bytes)
        return _struck(drilled)
    finally:
        alone.close()
        if drilled.disk is not None:
            drilled.disk.close()


def _alone(drill: Drill) -> Verdict | None:
    """Run it undisturbed. Return a verdict if nothing can be tried on it."""
    request, run, bench = drill.request, drill.alone, drill.bench
    start = run.begin()
    before = run.watch.published
    followed = run.follow(start, _long_enough(run, before, request.for_s) if request.for_s is not None else lambda _: False)
    if followed != "ended":
        run.kill(start)
    seconds = (start.ended_ns - start.began_ns) / 1e9
    generations = run.watch.published - before
    saved = (
        f"{generations:,} generation{'s' * (generations != 1)}, newest of step {run.watch.step:,}"
        if generations
        else "nothing saved"
    )
    failed = f"exit code {start.exit_code}, " if followed == "ended" and start.exit_code else ""
    bench.say(f"undisturbed: {seconds:.1f} s, {failed}{saved}")
    if followed == "timed out" or (followed == "ended" and start.exit_code != 0):
        kind = "timed-out" if followed == "timed out" else "failed-by-itself"
        return Verdict("failed", kind, request, drill.copied, complaint=start.child.complaint())
    kind, places = undisturbed_fault(run, drill.copied)
    return Verdict("nothing proven", kind, request, drill.copied, places=tuple(places)) if kind else None


def _long_enough(run: Run, before: int, for_s: float) -> Callable[[int], bool]:
    """Return what says when the undisturbed run is stopped: so long after its first save, and after two at least."""
    first_ns: list[int] = []

    def is_over(now_ns: int) -> bool:
        if run.watch.published > before and not first_ns:
            first_ns.append(now_ns)
        return run.watch.published >= before + 2 and now_ns - first_ns[0] >= for_s * 1e9

    return is_over


def _struck(drill: Drill) -> Verdict:
    runs: list[Drilled] = []
    for number in range(1, drill.request.runs + 1):
        found = _one(drill, number)
        if isinstance(found, Verdict):
            return found
        runs.append(found)
        drill.bench.say(f"run {number}/{drill.request.runs}: {found.line}")
    return _verdict(drill, tuple(runs))


def _verdict(drill: Drill, runs: tuple[Drilled, ...]) -> Verdict:
    alone = drill.alone.starts[0]
    facts = (drill.request, drill.copied, runs, (alone.ended_ns - alone.began_ns) / 1e9, drill.alone.watch.step)
    if any(run.end == "not deterministic" for run in runs):
        return Verdict("not deterministic", "before-any-strike", *facts)
    failed = next((run for run in runs if run.struck and not run.recovered), None)
    complaint = failed.complaint if failed else ()
    if failed is not None:
        return Verdict("missed its bounds", failed.kind, *facts, complaint)
    if drill.request.bounds.missed(runs):
        return Verdict("missed its bounds", "bound", *facts)
    missed = next((run.kind for run in runs if not run.struck), None)
    if missed is None and all(run.end == "not compared" for run in runs):
        missed = "never-compared"
    return Verdict("nothing proven", missed, *facts) if missed else Verdict("recovered", "recovered", *facts)


def _one(drill: Drill, number: int) -> Drilled | Verdict:
    """Strike one run, and let it recover. One that ends before it is struck is tried again, at another moment."""
    missed: Missed = "ended-before"
    for attempt in range(1, _TRIES + 1):
        run = _run(f"run-{number}-{attempt}", drill.request, drill.bench, drill.copied, drill.disk)
        try:
            found = VERBS[drill.request.verb](run, _aim(drill, number, attempt))
            if isinstance(found, Strike):
                return _recovered(drill, number, run, found)
            missed = found
            if missed in ("failed-by-itself", "timed-out"):
                complaint = run.starts[-1].child.complaint()
                return Verdict("failed", missed, drill.request, drill.copied, complaint=complaint)
        finally:
            run.close()
            shutil.rmtree(run.roots, ignore_errors=True)
    return Drilled.missed(number, missed)


def _recovered(drill: Drill, number: int, run: Run, strike: Strike) -> Drilled:
    """Let a run go on to its end, and judge it."""
    goal = drill.alone.watch.step
    start = strike.going_on or run.begin()
    strike.going_on = start
    until = (lambda _: run.watch.step >= goal) if drill.request.for_s is not None else (lambda _: False)
    followed = run.follow(start, until, within_s=drill.request.timeout_s)
    if followed != "ended":
        run.kill(start)
    elif start.exit_code and not strike.restarts:
        # It outlived what was done to it, and died of it later: of saves that had failed, or of another that had taken over.
        strike.reached, strike.down_ns, strike.since_ns = reached(run, start), start.ended_ns, start.ended_ns
        strike.restarts, strike.going_on, strike.since = True, run.begin(), "the end of what it had outlived"
        strike.notes.append(f"it ended afterwards with exit code {start.exit_code}, and was started again")
        followed = run.follow(strike.going_on, until, within_s=drill.request.timeout_s)
        if followed != "ended":
            run.kill(strike.going_on)
    return judge(number, run, strike, followed, drill.alone, to_the_end=drill.request.for_s is None)


def _run(name: str, request: Request, bench: Bench, copied: Sequence[Copied], disk: Disk | None = None) -> Run:
    folder = bench.scratch / name
    roots = disk.path / "roots" if disk is not None else folder / "roots"
    extra = {STOP: "1", GRACE: f"{request.grace_s:g}"} if request.verb == "term" else {}
    run = Run(name, request.command or SAMPLE, bench, folder, roots, request.timeout_s, request.here, extra)
    for each in copied:
        place(each, run.roots, run.work, bench.clock)
    return run


def _aim(drill: Drill, number: int, attempt: int) -> Aim:
    request, alone = drill.request, drill.alone
    instants = instants_of(alone)
    moment = moment_of(instants, sum(alone.copied_generations.values()), number, drill.bench.draw() / attempt, request.verb)
    longest_s = max((later - earlier for earlier, later in pairwise(instants)), default=0) / 1e9
    begin_s = max(_LEAST_BEGIN_S, 10 * (instants[0] - alone.starts[0].began_ns) / 1e9)
    return Aim(number, moment, request.grace_s, max(_LEAST_HOLD_S, 3 * longest_s), begin_s, alone.watch.step, drill.disk)


def instants_of(alone: Run) -> list[int]:
    """Return when a run began to train, and when each generation that it has published appeared."""
    start = alone.starts[0]
    began = next((seen.at_ns for seen in start.pulse.all if seen.beats.phase == "training"), start.began_ns)
    return [
        began,
        *sorted(max(ns, began) for root in alone.watch.roots.values() for ns in root.appeared_ns if ns > start.began_ns),
    ]


def moment_of(instants: Sequence[int], copied: int, number: int, draw: float, verb: Verb) -> Moment:
    """Return when to strike: any moment of the undisturbed run is as likely; every third run, the save that follows it.

    ``instants`` are those of `instants_of`. ``copied`` generations were there from the start: before there is one, there is
    nothing to recover. ``draw`` is from [0, 1).
    """
    needed = 2 if verb == "bitflip" else 1
    first = min(max(needed - copied, 0), len(instants) - 2)
    at_ns = instants[first] + int(draw * (instants[-1] - instants[first]))
    saved = max(bisect_right(instants, at_ns) - 1, first)
    if number % _EVERY_THIRD == 0:
        return Moment(copied + saved, at_save=True)
    return Moment(copied + saved, wait_ns=at_ns - instants[saved])
