"""What runs do to their root while they are recorded: each verb of the engine, alone and in lives at random."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.engine.collecting import collect
from milepost.errors import ConflictError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.scrub import Scrub
from milepost.publish import layout, pins, quarantine
from milepost.publish.signed import SignedStore
from milepost.publish.view import read
from milepost.records import Summary
from milepost.store.base import Store
from milepost.store.posix import Posix
from milepost.testing.faults import KILLED, run_in_child
from milepost.testing.power import Recorder
from tests.engine.training import Training, bits, local, state_at

RUN = "run"
AT_RANDOM = "at random "


@cache
def bits_at(step: int) -> Any:
    return bits(state_at(step))


@dataclass(frozen=True)
class Run:
    """Be one process's view of the run root below a place, whose file operations are recorded."""

    place: Path
    recorder: Recorder
    wrap: Callable[[Store], Store] = lambda store: store

    @property
    def root(self) -> Path:
        return self.place / RUN

    def store(self) -> Store:
        return self.wrap(local(self.root, self.recorder))

    def acknowledge(self, saved: Summary) -> None:
        self.recorder.note("acknowledged", number=saved.number, step=saved.step)

    def save(self, training: Training, *steps: int) -> None:
        for step in steps:
            self.acknowledge(training.save(step))

    def train(self, *steps: int, which: Any = "latest", **settings: Any) -> None:
        with Training(self.store(), **settings) as training:
            training.engine.resume(which)
            self.save(training, *steps)


# what lies there, durably, before


def nothing(_place: Path) -> None:
    """Start from an empty place."""


def three_generations(place: Path) -> None:
    with Training(place / RUN, keep=Keep(last=3)) as training:
        training.engine.resume()
        for step in (1, 2, 3):
            training.save(step)


def three_and_a_pin(place: Path) -> None:
    three_generations(place)
    pins.pin(local(place / RUN), 2)


def litter_of_killed_saves(place: Path) -> None:
    three_generations(place)
    root = place / RUN
    first = [root / "generations/000001.json", *(root / "blobs").glob("000001-*")]
    dead = {path: path.read_bytes() for path in first}
    with Training(root, keep=Keep(last=2)) as training:
        training.engine.resume()
        training.save(4)
    for path, data in dead.items():
        assert not path.exists()
        path.write_bytes(data)
    (root / f"blobs/000005-t2-{1:016x}.safetensors.part").write_bytes(b"unfinished")
    (root / f"blobs/000005-t2-{2:016x}.safetensors").write_bytes(b"unnamed")
    (root / f"blobs/LATEST-t2-{3:016x}.tmp").write_bytes(b"half")
    (root / f"blobs/000002-t0-{4:016x}.tmp").write_bytes(b"a pin")


def torn_head(place: Path) -> None:
    three_generations(place)
    (place / RUN / layout.manifest(3)).write_bytes(b"torn")


# what is done, recorded


def pin_and_train(run: Run) -> None:
    with Training(run.store()) as training:
        training.engine.resume()
        pins.pin(run.store(), 2)
        run.recorder.note("pinned", number=2)
        run.save(training, 4, 5)
        run.recorder.note("unpinning", number=2)
        pins.unpin(run.store(), 2)
        run.recorder.note("unpinned", number=2)
        run.save(training, 6)


def roll_back(run: Run) -> None:
    run.acknowledge(oneshot.rollback(run.store(), 1))


class SmallDisk(Posix):
    """Be a disk that takes no more than so many bytes below ``root``; the last write before it is full is a short one."""

    def __init__(self) -> None:
        self.root = Path()
        self.capacity_bytes: int | None = None

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name == "write" and self.capacity_bytes is not None:
            left = self.capacity_bytes - sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(args[0], args[1][:left])
        return function(*args, **kwargs)


def full_disk(run: Run) -> None:
    disk = run.recorder._inner
    assert isinstance(disk, SmallDisk)
    with Training(run.store(), keep=Keep(last=3)) as training:
        training.engine.resume()
        run.save(training, 4)
        disk.root, disk.capacity_bytes = run.root, sum(p.stat().st_size for p in run.root.rglob("*") if p.is_file()) + 4000
        run.save(training, 5)
    # 5 was the trim: generation 4 again, without 2.
    assert sorted(path.stem for path in (run.root / "generations").iterdir()) == ["000003", "000005", "000006"]


def reset_and_train(run: Run) -> None:
    oneshot.reset(run.store())
    run.recorder.note("reset")
    run.train(1, 2)


def drop_the_torn_one(run: Run) -> None:
    oneshot.drop(run.store(), 3)
    run.recorder.note("dropped", number=3)
    run.train(4, 5)


def take_over(run: Run) -> None:
    with Training(run.store()) as stopped:
        stopped.engine.resume()
        run.save(stopped, 4)
        with Training(run.store(), take_over=True) as training:
            training.engine.resume()
            run.save(training, 5)
            with pytest.raises(ConflictError):
                stopped.save(6)
            run.save(training, 7)


def mark_and_clear(run: Run) -> None:
    store, clock = run.store(), SystemClock()
    with Training(store) as training:
        training.engine.resume()
        view = read(store)
        quarantine.mark(store, clock, run_id=view.run_id, term=2, number=2, kind="kills-loader", reason="it did")
        run.recorder.note("marked", number=2)
        run.save(training, 4)
        run.recorder.note("clearing", number=2)
        quarantine.clear(store, 2)
        run.recorder.note("cleared", number=2)


def scrub_between_saves(run: Run) -> None:
    with Training(run.store()) as training:
        training.engine.resume()
        run.save(training, 4)
        assert Scrub(run.store(), SystemClock()).run(lambda _: None).problems == ()
        run.save(training, 5)
        Scrub(run.store(), SystemClock()).run(lambda _: None)


def collect_garbage(run: Run) -> None:
    trimmed = collect(run.store(), SystemClock(), Keep(last=1)).trimmed
    assert trimmed is not None
    run.acknowledge(trimmed)
    run.train(4)


class DiesUnsynced(Posix):
    """Kill the process once it has given a manifest its name, and before that name is durable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.linked = False

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name == "sync_directory" and self.linked:
            os._exit(KILLED)
        result = function(*args, **kwargs)
        self.linked |= name == "link" and args[1].endswith(self.name)
        return result


def adopt_what_a_killed_writer_published(run: Run) -> None:
    """Let a writer die with a manifest that nobody has synced and that keeps nothing older; the next one goes on from that."""
    dying = Run(run.place, Recorder(run.place, run.recorder.journal, DiesUnsynced(layout.manifest(3))))
    assert run_in_child(lambda: dying.train(1, 2, 3, keep=Keep(last=1))) == KILLED
    run.train(4, keep=Keep(last=1))


def read_what_a_killed_writer_published(run: Run) -> None:
    """Hand a generation on that nobody has synced: from then on it is somebody's (rule 20)."""
    dying = Run(run.place, Recorder(run.place, run.recorder.journal, DiesUnsynced(layout.manifest(3))))
    assert run_in_child(lambda: dying.train(1, 2, 3, keep=Keep(last=1))) == KILLED
    assert bits(oneshot.load(run.store())) == bits_at(3)
    run.recorder.note("acknowledged", number=3, step=3)


class LyingDisk(Posix):
    """Fail every third fsync of a file, and then say of that file that it is synced: so do Linux and a disk that lost pages."""

    def __init__(self) -> None:
        self.asked = 0
        self.spoilt: set[str] = set()

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name != "fsync":
            return function(*args, **kwargs)
        path = os.readlink(f"/proc/self/fd/{args[0]}")
        self.asked += path not in self.spoilt
        if path in self.spoilt:
            return None
        if self.asked % 3 == 0:
            self.spoilt.add(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*args, **kwargs)


def train_in_a_child(run: Run) -> None:
    assert run_in_child(lambda: run.train(4, writer="thread")) == 0
    run.train(5, 6, writer="thread")


def at_random(seed: int) -> Callable[[Run], None]:
    """Return a life of several starts, pins, rollbacks and collections that a seed chooses."""

    def act(run: Run) -> None:
        dice = np.random.default_rng(seed)
        for start in range(1, 7):
            live = sorted(read(local(run.root)).live)
            verb = VERBS[dice.integers(len(VERBS))] if len(live) > 1 else train_at_random
            verb(run, dice, live, 10 * start)

    return act


def train_at_random(run: Run, dice: np.random.Generator, live: list[int], step: int) -> None:
    last = int(dice.integers(1, 4))
    keep = Keep(last=last, independent=int(dice.integers(1, last + 1)))
    which = [*["latest"] * 6, "never", *live][dice.integers(7 + len(live))]
    steps = range(step, step + int(dice.integers(1, 4)))
    run.train(*steps, which=which, keep=keep, writer=["thread", "inline"][dice.integers(2)])


def pin_at_random(run: Run, dice: np.random.Generator, live: list[int], step: int) -> None:
    number = int(dice.choice(live))
    run.recorder.note("pinning", number=number)
    pins.pin(run.store(), number)
    run.recorder.note("pinned", number=number)


def unpin_at_random(run: Run, dice: np.random.Generator, live: list[int], step: int) -> None:
    for number in read(local(run.root)).pins:
        run.recorder.note("unpinning", number=number)
        pins.unpin(run.store(), number)
        run.recorder.note("unpinned", number=number)


def roll_back_at_random(run: Run, dice: np.random.Generator, live: list[int], step: int) -> None:
    run.acknowledge(oneshot.rollback(run.store(), int(dice.choice(live[:-1]))))


def collect_at_random(run: Run, dice: np.random.Generator, live: list[int], step: int) -> None:
    trimmed = collect(run.store(), SystemClock(), Keep(last=int(dice.integers(1, 3)))).trimmed
    if trimmed is not None:
        run.acknowledge(trimmed)


VERBS = [train_at_random, train_at_random, pin_at_random, unpin_at_random, roll_back_at_random, collect_at_random]


@dataclass(frozen=True)
class Case:
    """Say what lies there, what is done, and what was acknowledged before: generation numbers to steps."""

    act: Callable[[Run], object]
    prepare: Callable[[Path], object] = three_generations
    given: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 2, 3: 3})
    inner: Callable[[], Posix] = Posix
    wrap: Callable[[Store], Store] = lambda store: store
    torn: tuple[int, ...] = ()
    """Which manifests cannot be read."""


CASES: dict[str, Case] = {
    "first claim and saves": Case(lambda run: run.train(1, 2), nothing, {}),
    "claim, resume, save, retire": Case(lambda run: run.train(4, 5, keep=Keep(last=1))),
    "thread writer, child process": Case(train_in_a_child),
    "sweep": Case(lambda run: run.train(5), litter_of_killed_saves, {3: 3, 4: 4}),
    "go back and save": Case(lambda run: run.train(8, which=1)),
    "start anew and save": Case(lambda run: run.train(1, 2, which="never")),
    "rollback": Case(roll_back),
    "pin and unpin": Case(pin_and_train),
    "trim on a full disk": Case(full_disk, inner=SmallDisk),
    "reset": Case(reset_and_train, three_and_a_pin),
    "drop an unreadable manifest": Case(drop_the_torn_one, torn_head, {1: 1, 2: 2}, torn=(3,)),
    "takeover": Case(take_over),
    "quarantine": Case(mark_and_clear),
    "reading": Case(read_what_a_killed_writer_published, nothing, {}),
    "failed fsyncs": Case(lambda run: run.train(4, 5), inner=LyingDisk),
    "independent copies": Case(lambda run: run.train(4, 5, keep=Keep(last=2, independent=2))),
    "gc": Case(collect_garbage),
    "scrub": Case(scrub_between_saves),
    "signed": Case(lambda run: run.train(1, 2), nothing, {}, wrap=lambda store: SignedStore(store, b"k" * 32)),
    "adoption": Case(adopt_what_a_killed_writer_published, nothing, {}),
}
