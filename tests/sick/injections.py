"""Run everything a run does to its root on a disk that falls sick at one of its system calls, once or for good.

A case is (act, fault, call number). `run_case` plays it and holds the root, the errors and the live state to the promises;
`faults` plays as many as it is given, drawn from all there are, for ``make soak``.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.engine import oneshot
from milepost.errors import MilepostError, SaveFailed
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins
from milepost.publish.view import View, read
from milepost.store.posix import CHANGES
from milepost.testing.faults import FileOperation
from milepost.testing.sick import READS, TAKES_SPACE, Sickness, SickPosix, failing, failing_late, removing, short
from tests.crash.test_kill_everywhere import check_nothing_is_left_over
from tests.engine.training import Training, bits, local, state_at
from tests.soak.tally import Tally


@dataclass(frozen=True)
class Fault:
    """Say how the disk is sick, and which kinds of error may be told of it."""

    name: str
    make: Callable[[Path], Sickness]
    calls: frozenset[str]
    kinds: frozenset[str]
    lasting: bool = False
    gone: str | None = None
    """The directory that it removes, below the root."""

    def __str__(self) -> str:
        return f"{self.name}{' for good' if self.lasting else ''}"


def half_then_full(_root: Path) -> Sickness:
    """Take half of one write, and no byte more."""
    half, full, struck = short(), failing(errno.ENOSPC), []

    def strike(operation: FileOperation, apply: Callable[[], Any]) -> Any:
        struck.append(operation)
        return half(operation, apply) if len(struck) == 1 else full(operation, apply)

    return strike


def _errno(number: int, late: bool = False) -> Callable[[Path], Sickness]:
    return lambda _root: failing_late(number) if late else failing(number)


ALL = CHANGES | READS | {"close"}
WRITES = frozenset({"write", "write_at"})


def _faults() -> Iterator[Fault]:
    for lasting in (False, True):
        yield Fault("ENOSPC", _errno(errno.ENOSPC), TAKES_SPACE, frozenset({"disk-full"}), lasting)
        yield Fault("EDQUOT", _errno(errno.EDQUOT), TAKES_SPACE, frozenset({"quota"}), lasting)
        yield Fault("EIO", _errno(errno.EIO), CHANGES | {"close"}, frozenset({"io"}), lasting)
        yield Fault("EIO, done", _errno(errno.EIO, late=True), CHANGES | {"close"}, frozenset({"io"}), lasting)
        yield Fault("EIO at reads", _errno(errno.EIO), READS, frozenset({"io"}), lasting)
        yield Fault("EROFS", _errno(errno.EROFS), CHANGES, frozenset({"read-only"}), lasting)
        yield Fault("EACCES", _errno(errno.EACCES), CHANGES, frozenset({"permission"}), lasting)
        yield Fault("ESTALE", _errno(errno.ESTALE), ALL, frozenset({"stale"}), lasting)
        yield Fault("short writes", lambda _root: short(), WRITES, frozenset({"disk-full"}), lasting)
    yield Fault("short, then full", half_then_full, WRITES, frozenset({"disk-full"}), lasting=True)
    for gone in ("blobs", "generations", ""):
        kinds = frozenset({"vanished", "replaced", "no-such-run", "nothing-valid", "damaged-leaf", "listing-lags", "blobs-gone"})
        yield Fault(f"{gone or 'root'} removed", lambda root, gone=gone: removing(str(root / gone)), ALL, kinds, gone=gone)  # type: ignore[misc]


FAULTS = {str(fault): fault for fault in _faults()}


@dataclass
class Attack:
    """Hold one run root under attack, what was acknowledged there, and what was told."""

    root: Path
    posix: SickPosix
    warn: bool = False
    """Train on through failed saves, instead of raising them."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """The step of each acknowledged generation whose save began on a whole root, by number."""
    errors: list[MilepostError] = field(default_factory=list)
    was_reset: bool = False
    gone: str | None = None

    def tell(self, error: MilepostError) -> None:
        self.errors.append(error)

    @property
    def store(self) -> Any:
        return local(self.root, self.posix)

    def attempt(self, action: Callable[[], object]) -> bool:
        """Run ``action``; return whether it worked, and note the error if not."""
        try:
            action()
        except MilepostError as error:
            self.tell(error)
            return False
        return True

    def until_it_works(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the sick disk; should it fail, heal the disk, and then it must work."""
        if not self.attempt(action):
            self.posix.heal()
            action()

    def train(self, *steps: int, keep: Keep | None = None, before: Callable[[], object] = lambda: None) -> None:
        """Start, resume, save at each step, come what may; and once more on a healthy disk, with the same engine."""
        policy = {"on_save_error": "warn" if self.warn else "raise", "save_errors_max": 1000}
        training = Training(self.store, keep=keep, **policy)
        if self.gone is None:
            self.until_it_works(training.engine.resume)
        elif not self.attempt(training.engine.resume) and not self.attempt(training.engine.resume):
            return  # what it could have resumed from was removed
        before()
        for step in steps[:-1]:
            self.save(training, step)
        self.posix.heal()
        if not self.attempt(lambda: self.save_healthy(training, steps[-1])):
            assert self.gone is not None, self.errors[-1]
            # Of a log only what is new was staged: the save that finds the rest gone fails, and the one after it has all.
            if self.errors[-1].kind == "blobs-gone":
                self.save_healthy(training, steps[-1])
        self.attempt(training.engine.close)

    def save_healthy(self, training: Training, step: int) -> None:
        saved = training.save(step)
        if saved.step != step and self.warn and self.gone is not None:
            saved = training.save(step)  # the same, where a failed save is no error
        assert saved.step == step
        self.acknowledged[saved.number] = step

    def save(self, training: Training, step: int) -> None:
        struck, told = self.posix.struck, len(self.errors)
        training.train_to(step)
        head = training.engine.wait() if self.attempt(lambda: training.engine.save(step)) else None
        raised = self.errors[told:]
        assert not self.warn or all(error.kind in ("replaced", "fenced") for error in raised), raised
        # In the middle of whose save a directory was removed, that one may be lost with it.
        if head is not None and head.step == step and (self.gone is None or struck == self.posix.struck):
            self.acknowledged[head.number] = step
        assert training.is_at(step), "a save, failed or not, changes nothing that lives"


def nothing(root: Path) -> None:
    """Start from an empty place."""


def three_generations(root: Path) -> None:
    with Training(local(root), keep=Keep(last=3)) as training:
        for step in (1, 2, 3):
            training.save(step)


def torn_head(root: Path) -> None:
    three_generations(root)
    (root / layout.manifest(3)).write_bytes(b"torn")


def trim(attack: Attack) -> None:
    assert isinstance(attack.posix, SmallDisk)
    posix = attack.posix

    def fill() -> None:
        posix.capacity_bytes = posix.used_bytes() + 4000

    attack.train(4, 5, 6, keep=Keep(last=3), before=fill)


def pin(attack: Attack) -> None:
    attack.until_it_works(lambda: pins.pin(attack.store, 2))
    assert read(local(attack.root)).pins[2].state == "held"


def roll_back(attack: Attack) -> None:
    def act() -> None:
        saved = oneshot.rollback(attack.store, 1)
        attack.acknowledged[saved.number] = saved.step

    attack.until_it_works(act)


def reset(attack: Attack) -> None:
    def act() -> None:
        oneshot.reset(attack.store)
        attack.was_reset = True

    if not attack.attempt(act):
        attack.posix.heal()
        attack.was_reset = "the run is reset" in attack.errors[-1].message or read(local(attack.root)).head is None
        if not attack.was_reset:
            act()


def drop(attack: Attack) -> None:
    def act() -> None:
        oneshot.drop(attack.store, 3)

    if not attack.attempt(act):
        attack.posix.heal()
        if 3 in read(local(attack.root)).unreadable:
            act()


@dataclass(frozen=True)
class Act:
    """Say what is there before, what is done, and at which step the next start may find itself."""

    prepare: Callable[[Path], None]
    act: Callable[[Attack], None]
    known: tuple[int, ...] = (1, 2, 3)
    """The steps of the generations that were there before."""
    kinds: frozenset[str] = frozenset()
    """Which kinds of error may be told beside those of the fault."""


ACTS: dict[str, Act] = {
    "first claim and saves": Act(nothing, lambda attack: attack.train(1, 2, 3), ()),
    "claim, resume, save, retire": Act(three_generations, lambda attack: attack.train(4, 5, 6)),
    "trim on a full disk": Act(three_generations, trim, kinds=frozenset({"disk-full"})),
    "rollback": Act(three_generations, roll_back),
    "pin": Act(three_generations, pin),
    "reset": Act(three_generations, reset),
    "drop": Act(torn_head, drop, (1, 2)),
}


REMOVED_UNDER = ("first claim and saves", "claim, resume, save, retire")
"""What is tried while directories are removed."""


class SmallDisk(SickPosix):
    """Be a sick disk that takes, once told so, no more than so many bytes."""

    root: Path
    capacity_bytes: int | None = None

    def used_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        full = name == "write" and self.capacity_bytes is not None
        if full and self.used_bytes() + len(args[1]) > (self.capacity_bytes or 0):
            return super().perform(name, _no_space, *args)
        return super().perform(name, function, *args, **kwargs)

    def heal(self) -> None:
        super().heal()
        self.capacity_bytes = None


class Listening(SmallDisk):
    """Be a healthy disk that notes the name of each call."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.names: list[str] = []

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.names.append(name)
        return super().perform(name, function, *args, **kwargs)


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Bench:
    """Keep the run roots that acts begin from, so that each case gets a copy."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._origins: dict[Callable[[Path], None], Path] = {}
        self._counts = itertools.count()
        self._seen: dict[Callable[[Attack], None], list[str]] = {}

    def fresh(self, prepare: Callable[[Path], None]) -> Path:
        """Return a fresh copy of what ``prepare`` makes."""
        if prepare not in self._origins:
            self._origins[prepare] = self.place / f"origin-{prepare.__name__}"
            prepare(self._origins[prepare])
        root = self.place / str(next(self._counts))
        if self._origins[prepare].exists():
            shutil.copytree(self._origins[prepare], root)
        return root

    def calls(self, act: Act, calls: frozenset[str]) -> int:
        """Return how many calls of these kinds an act makes on a healthy disk."""
        if act.act not in self._seen:
            posix = Listening(calls=ALL)
            posix.root = self.fresh(act.prepare)
            act.act(Attack(posix.root, posix))
            self._seen[act.act] = posix.names
            shutil.rmtree(posix.root)
        return sum(name in calls for name in self._seen[act.act])


def play(bench: Bench, act: Act, fault: Fault, at: int) -> tuple[Attack, bool]:
    """Play one case; return what came of it, and whether the act had a call number ``at`` at all."""
    root = bench.fresh(act.prepare)
    # Every other case trains on through failed saves, the others have them raised.
    posix = SmallDisk(fault.make(root), at, calls=fault.calls, lasting=fault.lasting)
    posix.root = root
    attack = Attack(root, posix, warn=at % 2 == 1, gone=fault.gone)
    act.act(attack)
    posix.heal()
    return attack, posix.struck > 0


def run_case(bench: Bench, act: Act, fault: Fault, at: int) -> tuple[Attack, bool]:
    """Play one case and check every promise on the healed disk."""
    attack, struck = play(bench, act, fault, at)
    for error in attack.errors:
        check_error(error, fault.kinds | act.kinds)
    if fault.gone is None:
        check_root(attack, act)
        check_next_start(attack, act)
    else:
        check_after_removal(attack)
    shutil.rmtree(attack.root, ignore_errors=True)
    return attack, struck


def check_error(error: MilepostError, kinds: frozenset[str]) -> None:
    told = f"{type(error).__name__} {error.kind}: {error}"
    assert error.kind in kinds, told
    assert error.message, told
    assert error.hint, told
    assert {"root", "path", "name"} & error.facts.keys(), told
    if isinstance(error, SaveFailed):
        assert isinstance(error.__cause__, MilepostError), told
        assert error.facts["cause"], told


def check_root(attack: Attack, act: Act) -> None:
    """Check that whatever is live is whole, that the newest acknowledged one is there, and that nothing is damaged."""
    store = local(attack.root)
    view = read(store)
    torn = {layout.manifest(3)} if act.prepare is torn_head else set()
    problems = [problem for problem in oneshot.verify(store).problems if problem.name not in torn]
    assert problems == []
    for number, summary in view.live.items():
        assert bits(oneshot.load(store, which=number)) == bits(state_at(summary.step)), number
    check_acknowledged(attack, view)
    if act.known and not attack.was_reset:
        assert view.head is not None, "what was acknowledged before is there"


def check_acknowledged(attack: Attack, view: View) -> None:
    newest = max(attack.acknowledged, default=0)
    if not newest:
        return
    assert view.head is not None
    assert view.head.number >= newest
    for number, step in attack.acknowledged.items():
        repeated = {live.trim_of: live for live in view.live.values()}
        kept = view.live.get(number) or repeated.get(number)
        assert kept is not None or number < newest, "the newest acknowledged generation is never retired"
        assert kept is None or kept.step == step


def check_next_start(attack: Attack, act: Act) -> None:
    store = local(attack.root)
    with Training(store) as training:
        restored = training.engine.resume()
        check_nothing_is_left_over(attack.root)
        newest = max(attack.acknowledged, default=0)
        if restored is None:
            assert not newest
            assert attack.was_reset or not act.known
        else:
            assert restored.generation >= newest
            assert restored.skipped == ()
            assert training.is_at(restored.step)
        assert training.save(99).step == 99
    assert oneshot.verify(store).problems == ()
    assert bits(oneshot.load(store)) == bits(state_at(99))


def check_after_removal(attack: Attack) -> None:
    """Check what may still be promised once somebody removed what was there: what was acknowledged after that."""
    if attack.gone == "" or not attack.acknowledged:
        return
    store = local(attack.root)
    newest = max(attack.acknowledged)
    view = read(store)
    if attack.acknowledged[newest] in (3, 6):  # the save that began on the healed disk
        assert view.head is not None
        assert view.head.number == newest
        assert bits(oneshot.load(store, which=newest)) == bits(state_at(attack.acknowledged[newest]))


def faults(seed: int, limit: int, place: Path) -> Tally:
    """Play ``limit`` cases drawn from all there are; return how many faults struck, and every promise that was broken."""
    chance, total, bench = random.Random(seed), Tally(), Bench(place)
    for _ in range(limit):
        name, fault = chance.choice(CASES)
        at = chance.randrange(bench.calls(ACTS[name], FAULTS[fault].calls))
        try:
            attack, struck = run_case(bench, ACTS[name], FAULTS[fault], at)
        except (AssertionError, MilepostError, OSError) as error:
            total.lost.append(f"seed {seed}: {name}, {fault} at call {at}: {type(error).__name__} {error}")
            continue
        total.operations += 1
        total.faults += struck
        total.acknowledged += len(attack.acknowledged)
    return total


CASES = [(act, fault) for act in ACTS for fault in FAULTS if FAULTS[fault].gone is None or act in REMOVED_UNDER]
"""All pairs of what is done and how the disk is sick."""
