"""Do to a run what each drill is named after. A `Strike` says what was done; a text, why nothing could be."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.lifecycle.stopping import EXIT_CODE
from milepost.publish import layout
from milepost.publish.hints import read_progress
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.store.local import LocalStore
from milepost.supervise.drill_copy import unshare
from milepost.supervise.drill_measure import Strike
from milepost.supervise.drill_run import Run, Start
from milepost.supervise.moments import Hunt, Moment
from milepost.supervise.small_disk import Disk
from milepost.supervise.watching import Root
from milepost.text import name_of, name_of_signal

Verb: TypeAlias = Literal["kill9", "term", "stop", "bitflip", "diskfull"]
Missed: TypeAlias = Literal["ended-before", "failed-by-itself", "timed-out", "nothing-to-fall-back-to"]

_LOCKED = 11
_WHERE: tuple[Literal["blob", "manifest", "LATEST"], ...] = ("blob", "manifest", "LATEST")


@dataclass(frozen=True, slots=True)
class Aim:
    """Say when to strike, and with what patience."""

    number: int
    """Of the run, from 1."""
    moment: Moment
    grace_s: float
    hold_s: float
    """How long to hold what is held: a full disk, a second start that waits."""
    begin_s: float
    """How long a second start may take to come to its run root."""
    last_step: int
    """Of the run that was left alone."""
    disk: Disk | None = None


def kill9(run: Run, aim: Aim) -> Strike | Missed:
    """Kill it with SIGKILL, with all that it has started."""
    start = run.begin()
    if missed := _await(run, start, aim):
        return missed
    at_ns = run.bench.clock.monotonic_ns()
    if not run.kill(start):
        return _ended(start)
    strike = _strike(run, start, "SIGKILL", at_ns)
    strike.what = f"killed with SIGKILL {_while(strike)}"
    return strike


def term(run: Run, aim: Aim) -> Strike | Missed:
    """Send SIGTERM to the command alone, as a scheduler does, and give it its grace."""
    start = run.begin()
    if missed := _await(run, start, aim):
        return missed
    at_ns = run.bench.clock.monotonic_ns()
    phase = _phase(run, start)
    start.child.signal(signal.SIGTERM)
    within = run.follow(start, within_s=aim.grace_s) == "ended"
    if not within:
        run.kill(start)
    took_s = (start.ended_ns - at_ns) / 1e9
    if start.exit_code == 0 and run.watch.step >= aim.last_step:
        return "ended-before"
    strike = _strike(run, start, "SIGTERM", at_ns, phase=phase, since="the signal")
    strike.saves_first = True
    strike.what = f"given SIGTERM {_while(strike)}; it ended after {took_s:.1f} s with {_code(start)}"
    if not within:
        strike.problems.append(f"it had not ended {aim.grace_s:g} s after SIGTERM, and was killed")
    elif start.exit_code == -signal.SIGTERM:
        strike.problems.append("it does not listen to SIGTERM, which ended it at once: nothing was saved")
    elif start.exit_code != EXIT_CODE:
        strike.problems.append(f"it ended with {_code(start)}; what is to be started again ends with {EXIT_CODE}")
    return strike


def stop(run: Run, aim: Aim) -> Strike | Missed:
    """Stop it for a while, start it a second time meanwhile, and let it go on: only one of them may write."""
    start = run.begin()
    if missed := _await(run, start, aim):
        return missed
    start.child.signal(signal.SIGSTOP, group=True)
    run.look(start)
    if not start.is_running:
        return _ended(start)
    terms = _terms(run)
    strike = _strike(run, start, "SIGSTOP", run.bench.clock.monotonic_ns(), since="SIGCONT")
    second = run.begin()
    came_ns: list[int] = []

    def is_over(now_ns: int) -> bool:
        # Before it has come to its root it neither waits nor is it refused: it imports, and would prove nothing.
        came_ns.extend([now_ns] if second.pulse.seen and not came_ns else [])
        return _terms(run) > terms or (bool(came_ns) and now_ns - came_ns[0] >= aim.hold_s * 1e9)

    followed = run.follow(second, is_over, within_s=aim.begin_s + aim.hold_s)
    took_over = _terms(run) > terms
    strike.what = f"stopped with SIGSTOP {_while(strike)}"
    if took_over:
        strike.notes.append("the second start took over from the one that was stopped")
    elif followed == "ended":
        _judge_refusal(second, strike)
    else:
        run.kill(second)
        if came_ns or not start.pulse.seen:
            strike.notes.append(f"the second start waited; it was ended after {aim.hold_s:g} s")
        else:
            strike.problems.append(f"a second start had not come to its run root after {aim.begin_s + aim.hold_s:g} s")
    strike.restarts, strike.since_ns = took_over, run.bench.clock.monotonic_ns()
    strike.going_on = second if took_over else start
    start.child.signal(signal.SIGCONT, group=True)
    return strike


def _judge_refusal(second: Start, strike: Strike) -> None:
    says = " ".join(second.child.complaint())
    if second.exit_code == 0:
        strike.problems.append("a second start ended with exit code 0 beside the first, as if it had trained")
    elif second.exit_code == _LOCKED or "ConflictError" in says:
        strike.notes.append("a second start was refused meanwhile")
    else:
        strike.problems.append(f"a second start ended with {_code(second)}, and not because the root was held")


def bitflip(run: Run, aim: Aim) -> Strike | Missed:
    """Kill it, and flip one bit of its newest generation: of a blob, of the manifest, of LATEST, in turn."""
    strike = kill9(run, aim)
    if not isinstance(strike, Strike):
        return strike
    flipped = _flip(run, strike, _WHERE[(aim.number - 1) % len(_WHERE)])
    if not flipped:
        return "nothing-to-fall-back-to"
    strike.what = f"killed {_while(strike)}, and one bit flipped in {flipped}"
    return strike


def _flip(run: Run, strike: Strike, where: Literal["blob", "manifest", "LATEST"]) -> str:
    """Flip one bit, and return of what; empty if nothing older would be left to go on from."""
    names = sorted(run.watch.saved)
    name = names[int(run.bench.draw() * len(names))]
    root = run.watch.roots[name]
    view = read(LocalStore(str(root.path), run.bench.clock))
    if view.head is None or len(view.live) < 2:
        return ""
    newest = root.manifests[view.head.number]
    older = [{blob.name for blob in each.blobs} for number, each in view.live.items() if number != newest.number]
    found = _leaf_of(newest, older, run.bench.draw) if where == "blob" else None
    if where == "LATEST":
        path, at = layout.LATEST, None
    elif found is None:
        path, at = layout.manifest(newest.number), None
        strike.damaged = {name: frozenset({newest.number})}
    else:
        path, at = found
        strike.damaged = {name: frozenset(n for n, each in view.live.items() if any(b.name == path for b in each.blobs))}
    _flip_bit(run, root, path, at)
    return f"{path} of {name_of(newest.number)}" if where == "LATEST" else f"{path}, the newest generation"


def _leaf_of(newest: Manifest, older: Sequence[AbstractSet[str]], draw: Callable[[], float]) -> tuple[str, int | None] | None:
    """Return a blob and a byte in it that holds something of the state; if there is one, a blob that is no older one's, too.

    ``older``: what each older generation has. None if all that there is belongs to each of them: nothing whole would be left.
    """
    leaves = [leaf for part in newest.components for leaf in part.leaves if leaf.size_bytes]
    own = [leaf for leaf in leaves if not any(newest.blobs[leaf.blob].name in names for names in older)]
    own = own or [leaf for leaf in leaves if not all(newest.blobs[leaf.blob].name in names for names in older)]
    if not own:
        return None
    leaf = own[int(draw() * len(own))]
    blob = newest.blobs[leaf.blob]
    # What is compressed lies elsewhere; any byte of it will do.
    return blob.name, None if blob.frames else leaf.start + int(draw() * leaf.size_bytes)


def _flip_bit(run: Run, root: Root, name: str, at: int | None) -> None:
    path = root.path / name
    unshare(path, run.bench.scratch)
    with open(path, "r+b") as file:
        size_bytes = file.seek(0, 2)
        at = int(run.bench.draw() * size_bytes) if at is None else at
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << int(run.bench.draw() * 8)]))


def diskfull(run: Run, aim: Aim) -> Strike | Missed:
    """Let the disk be full from one moment to the next, and have space again after a while."""
    assert aim.disk is not None
    start = run.begin()
    if missed := _await(run, start, aim):
        return missed
    run.look(start)
    strike = _strike(run, start, "ENOSPC", run.bench.clock.monotonic_ns(), since="when there was space again")
    aim.disk.fill()
    published = run.watch.published
    followed = run.follow(start, lambda _: run.watch.published > published, within_s=aim.hold_s)
    aim.disk.free()
    strike.since_ns = run.bench.clock.monotonic_ns()
    strike.restarts = followed == "ended"
    how = {"ended": f"it ended with {_code(start)}", "until": "it made room for itself, and saved", "timed out": "it trained on"}
    strike.what = f"disk full {_while(strike)}; {how[followed]}"
    if followed == "ended" and start.exit_code == 0 and run.watch.step >= aim.last_step:
        return "ended-before"
    if strike.restarts:
        strike.reached, strike.down_ns = reached(run, start), start.ended_ns
    else:
        strike.going_on = start
    return strike


VERBS: dict[Verb, Callable[[Run, Aim], Strike | Missed]] = {
    "kill9": kill9,
    "term": term,
    "stop": stop,
    "bitflip": bitflip,
    "diskfull": diskfull,
}


def _await(run: Run, start: Start, aim: Aim) -> Missed | None:
    hunt, copied = Hunt(aim.moment), sum(run.copied_generations.values())

    def is_due(now_ns: int) -> bool:
        # Not before it trains: one that has done nothing yet has nothing to lose.
        return (start.pulse.trains or run.watch.published > copied) and hunt.is_due(run.watch, now_ns)

    followed = run.follow(start, is_due, keen=aim.moment.at_save)
    if followed == "timed out":
        run.kill(start)
        return "timed-out"
    return _ended(start) if followed == "ended" else None


def _ended(start: Start) -> Missed:
    return "failed-by-itself" if start.child.exit_code else "ended-before"


def _strike(run: Run, start: Start, what: str, at_ns: int, *, phase: str = "", since: str = "the kill") -> Strike:
    acknowledged = {
        name: frozenset(read(LocalStore(str(root.path), run.bench.clock)).live) for name, root in run.watch.saved.items()
    }
    return Strike(what, at_ns, reached(run, start), acknowledged, phase or _phase(run, start), since=since, struck=start)


def reached(run: Run, start: Start) -> dict[str, int]:
    """Return by run the last safe point that a start has come to; of one that does not show them, the last save it began."""
    told = {run_id: seen[-1].beats.step for run_id, seen in start.pulse.of_runs().items()}
    found = {}
    for root in run.watch.saved.values():
        assert root.newest is not None
        progress = read_progress(LocalStore(str(root.path), run.bench.clock))
        least = max(root.newest.step, progress.step if progress else 0)
        found[root.newest.run_id] = max(told.get(root.newest.run_id, -1), least)
    return found


def _phase(run: Run, start: Start) -> str:
    seen = start.pulse.all
    if seen and seen[-1].beats.phase not in ("training", "closed"):
        return seen[-1].beats.phase
    return "saving" if run.watch.is_saving else "training"


def _while(strike: Strike) -> str:
    doing = {"saving": "while it saved", "resuming": "while it resumed", "claiming": "while it claimed its root"}
    step = max(strike.reached.values(), default=0)
    return f"{doing.get(strike.phase, 'while it trained')}, at step {step:,}"


def _terms(run: Run) -> int:
    """Return the highest term that any of the roots has been claimed by."""
    names = (entry for root in run.watch.roots.values() for entry in (root.path / layout.TERMS).glob("*.json"))
    return max((layout.fence_term(layout.TERMS + entry.name) or 0 for entry in names), default=0)


def _code(start: Start) -> str:
    code = start.exit_code
    if code is None or code >= 0:
        return f"exit code {code}"
    return name_of_signal(-code)
