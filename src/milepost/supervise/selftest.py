"""Prove of a user's own training command that it is exact: run it alone, then killed and resumed, and compare.

`selftest` is the story. Each series of starts (alone, perhaps again alone, killed) has a working directory and run roots of
its own below one scratch directory; `milepost.store.resolve.redirected` moves the engines' roots there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from milepost.clock import Clock, draw
from milepost.supervise.child import Child, from_elsewhere, redirected_environment
from milepost.supervise.group import adopting
from milepost.supervise.judging import Comparison, base_of, compare
from milepost.supervise.moments import At, Hunt, Moment, plan
from milepost.supervise.watching import Watch, strays

Outcome: TypeAlias = Literal["identical", "different", "not deterministic", "nothing proven", "failed"]
Begun: TypeAlias = Literal["fresh", "resumed", "anew", "unknown"]
"""How a start began: with nothing saved, from a generation, in spite of one; it published nothing to tell it by."""
Ended: TypeAlias = Literal["by itself", "killed", "failed", "timed out"]

_TELLING: tuple[Begun, ...] = ("anew", "resumed", "unknown", "fresh")
_FASTEST_S, _SLOWEST_S = 0.001, 0.02


@dataclass(frozen=True, slots=True)
class Start:
    """Say how one start of the command went."""

    series: str
    ended: Ended
    exit_code: int | None
    seconds: float
    step: int
    """Of the newest generation when it ended."""
    generations: int
    """Published in the series by then."""
    was_saving: bool = False
    begun: Begun = "fresh"
    from_step: int | None = None
    """Of the generation that it went on from; None where it did not, or where that was not seen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what came of it."""

    outcome: Outcome
    kind: str
    """Exactly what happened, for programs: kinds are added, never renamed."""
    starts: tuple[Start, ...]
    comparison: Comparison | None = None
    complaint: tuple[str, ...] = ()
    """The last lines of the stderr of a start that failed."""
    places: tuple[str, ...] = ()
    """Run roots that explain the outcome."""


@dataclass(frozen=True, slots=True)
class Request:
    """Say what is to be tried."""

    command: tuple[str, ...]
    kills: int = 2
    at: At = "each"
    twice: bool = False
    timeout_s: float = 600.0
    here: Path | None = None
    """Run every start in this directory; None: in an empty one."""


@dataclass(slots=True)
class Series:
    """Be one run of the command, however many starts it takes."""

    name: str
    folder: Path
    watch: Watch
    starts: int = 0
    undisturbed: dict[str, int] = field(default_factory=dict)
    """By root, the highest term of its first start: up to that nobody had touched it."""

    @classmethod
    def begun(cls, name: str, scratch: Path, clock: Clock) -> Series:
        """Make its directories."""
        folder = scratch / name
        for part in ("roots", "work"):
            (folder / part).mkdir(parents=True)
        return cls(name, folder, Watch(folder / "roots", clock))


@dataclass(slots=True)
class Bench:
    """Hold what a selftest works with: where, by which clock, how it waits, whom it tells."""

    scratch: Path
    clock: Clock
    pause: Callable[[float], object]
    say: Callable[[str], None]
    starts: list[Start] = field(default_factory=list)
    complaint: tuple[str, ...] = ()


def selftest(request: Request, bench: Bench) -> Verdict:
    """Run the command alone, then killed and resumed, and compare. Takes two runs and a start for each kill.

    The command is one that trains with milepost, whatever else it does. Raises `UsageError` (kind ``no-such-command``).
    """
    alone = Series.begun("alone", bench.scratch, bench.clock)
    if start := _failed(_run(request, alone, bench)):
        return _verdict("failed", "timed-out" if start.ended == "timed out" else "failed-by-itself", bench)
    if not alone.watch.saved:
        work = alone.folder / "work"
        places = [place.relative_to(work) for place in strays(work)]
        return _verdict("nothing proven", "saved-elsewhere" if places else "never-saved", bench, places=places)
    if request.twice and (verdict := _again(request, alone, bench)):
        return verdict
    moments = plan(alone.watch, request.kills, request.at, partial(draw, bench.clock))
    if request.kills and not moments:
        return _verdict("nothing proven", "saved-only-once", bench)
    killed = Series.begun("killed", bench.scratch, bench.clock)
    return _killed(request, killed, moments, bench) or _judged(alone, killed, bench)


def _again(request: Request, alone: Series, bench: Bench) -> Verdict | None:
    """Return a verdict unless the command does twice the same when nobody disturbs it: nothing can be proven of it then."""
    again = Series.begun("again", bench.scratch, bench.clock)
    if start := _failed(_run(request, again, bench)):
        return _verdict("failed", "timed-out" if start.ended == "timed out" else "failed-by-itself", bench)
    if apart := _other_roots(alone, again):
        return _verdict("nothing proven", "other-roots", bench, places=apart)
    comparison = compare(alone.watch, again.watch, bench.clock)
    return _verdict("not deterministic", "twice-alone", bench, comparison) if comparison.parting else None


def _killed(request: Request, series: Series, moments: Sequence[Moment], bench: Bench) -> Verdict | None:
    """Kill and start again until it ends by itself. Return a verdict if it does not come to that."""
    for moment in (*moments, None):
        start = _run(request, series, bench, moment)
        if start.ended in ("failed", "timed out"):
            first = series.starts == 1
            return _verdict("failed" if first else "different", "failed-by-itself" if first else "failed-after-a-kill", bench)
        if start.ended == "by itself":
            break
    if series.starts == 1 and moments:
        return _verdict("nothing proven", "ended-before-a-kill", bench)
    return None


def _judged(alone: Series, killed: Series, bench: Bench) -> Verdict:
    if apart := _other_roots(alone, killed):
        return _verdict("nothing proven", "other-roots", bench, places=apart)
    comparison = compare(alone.watch, killed.watch, bench.clock)
    begun = {start.begun for start in bench.starts if start.series == killed.name}
    if "anew" in begun:
        return _verdict("nothing proven", "never-resumed", bench, comparison)
    parting = comparison.parting
    # What its first start saved, before anybody touched it, has to be what the other run saved.
    if parting is not None and parting.other.term <= killed.undisturbed.get(parting.root.path.name, 0):
        return _verdict("not deterministic", "before-any-kill", bench, comparison)
    if parting is not None:
        return _verdict("different", "state-differs", bench, comparison)
    if "resumed" not in begun:
        return _verdict("nothing proven", "killed-too-late", bench, comparison)
    return _verdict("identical", "identical", bench, comparison)


def _run(request: Request, series: Series, bench: Bench, moment: Moment | None = None) -> Start:
    """Start the command, and watch it until it ends, is killed at ``moment``, or takes too long."""
    series.starts += 1
    watch, began_ns = series.watch, bench.clock.monotonic_ns()
    terms = {name: root.term for name, root in watch.roots.items()}
    log = series.folder / f"start-{series.starts}"
    environment = redirected_environment(request.command, series.folder / "roots", here=request.here is not None)
    cwd = request.here or series.folder / "work"
    with adopting():  # whoever leaves the session of the command is killed all the same
        child = Child(from_elsewhere(request.command), cwd=cwd, environment=environment, log=log)
        try:
            ended = _watched(child, watch, moment, began_ns + round(request.timeout_s * 1e9), bench)
        finally:
            child.kill()
    watch.look()
    seconds = (bench.clock.monotonic_ns() - began_ns) / 1e9
    if series.starts == 1:
        series.undisturbed = {name: root.term for name, root in watch.roots.items()}
    progress = watch.step, watch.published, watch.is_saving
    start = Start(series.name, ended, child.exit_code, seconds, *progress, *_begun(watch, terms))
    bench.starts.append(start)
    if ended in ("failed", "timed out"):
        bench.complaint = child.complaint()
    bench.say(describe(start))
    return start


def _watched(child: Child, watch: Watch, moment: Moment | None, stop_ns: int, bench: Bench) -> Ended:
    hunt, pause_s = Hunt(moment) if moment else None, _FASTEST_S
    while True:
        code = child.exit_code
        pause_s = _FASTEST_S if watch.look() else min(pause_s * 1.1, _SLOWEST_S)
        if code is not None:
            return "failed" if code else "by itself"
        now_ns = bench.clock.monotonic_ns()
        if hunt is not None:
            if hunt.is_due(watch, now_ns):
                return "killed" if child.kill() else "failed" if child.exit_code else "by itself"
            pause_s = min(pause_s, _FASTEST_S) if hunt.moment.at_save else pause_s
        if now_ns >= stop_ns:
            child.kill()
            return "timed out"
        bench.pause(pause_s)


def _begun(watch: Watch, terms: dict[str, int]) -> tuple[Begun, int | None]:
    """Return how the last start began, by what its first save in each root stands on. ``terms``: the highest before it."""
    begun: dict[Begun, int | None] = {}
    for name, root in watch.saved.items():
        before = terms.get(name, 0)
        new = [manifest for _, manifest in sorted(root.manifests.items()) if manifest.term > before]
        if not new:
            begun["unknown"] = None
        elif not before:
            begun["fresh"] = None
        elif base := base_of(new[0]):
            begun["resumed"] = root.manifests[base].step if base in root.manifests else None
        else:
            begun["anew"] = None
    return next(((how, begun[how]) for how in _TELLING if how in begun), ("fresh", None))


def _failed(start: Start) -> Start | None:
    return start if start.ended != "by itself" else None


def _other_roots(one: Series, other: Series) -> list[Path]:
    """Return the roots that only one of two runs has saved to, unless they are the same."""
    names = one.watch.saved.keys() ^ other.watch.saved.keys()
    return [Path(root.original) for watch in (one.watch, other.watch) for name, root in watch.saved.items() if name in names]


def _verdict(
    outcome: Outcome, kind: str, bench: Bench, comparison: Comparison | None = None, *, places: Sequence[Path] = ()
) -> Verdict:
    return Verdict(outcome, kind, tuple(bench.starts), comparison, bench.complaint, tuple(map(str, places)))


def describe(start: Start) -> str:
    """Return one line about how a start went."""
    step = f" from step {start.from_step:,}" if start.from_step is not None else ""
    begun = {"resumed": f"went on{step}, ", "anew": "began anew, "}.get(start.begun, "")
    ended = {
        "by itself": "ended by itself",
        "killed": "killed while it saved" if start.was_saving else "killed between two saves",
        "failed": f"failed with exit code {start.exit_code}",
        "timed out": "was stopped: it took too long",
    }[start.ended]
    saved = f"{start.generations:,} generations, newest of step {start.step:,}" if start.generations else "nothing saved"
    return f"{start.series}: {begun}{ended} after {start.seconds:.1f} s ({saved})"
