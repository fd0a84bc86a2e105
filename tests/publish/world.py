"""One run root and the processes at work on it, so that a test can say who does what, and in which order.

Each process has a `FaultStore` of its own over the same bytes. No process holds the root's guard: any claim at any time
is the worst case that the terms must survive.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numpy as np

from milepost.clock import FakeClock
from milepost.engine import oneshot
from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.engine.opening import Opened, open_session
from milepost.engine.relief import clear_up, write_with_relief
from milepost.engine.session import Order, Session
from milepost.engine.writer import republish
from milepost.errors import NotFoundError
from milepost.lifecycle.recover import choose
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.generation import KeepRule
from milepost.publish.manifest import decode_manifest
from milepost.publish.term import Identity
from milepost.publish.view import View, read
from milepost.records import Manifest, Summary
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix
from milepost.testing.faults import HANG_S, FaultStore, Gate

P = ParamSpec("P")
T = TypeVar("T")

WHO = Identity("host", "boot", 1)


class Unsynced(Posix):
    """Leave out what only a power cut could tell from a call that was made: nobody cuts the power here."""

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name in ("fsync", "sync_directory", "start_write_back"):
            function = cast(Callable[P, T], _nothing)
        return function(*args, **kwargs)


def _nothing(*_arguments: object) -> None: ...


class Pausable(FaultStore):
    """Remember the gates that were put up."""

    def __init__(self, inner: Store, gates: list[Gate]) -> None:
        super().__init__(inner)
        self._gates = gates

    def pause(self, operation: str, pattern: str = "*", *, nth: int = 1, after: bool = False) -> Gate:
        gate = super().pause(operation, pattern, nth=nth, after=after)
        self._gates.append(gate)
        return gate


class World:
    """Hold one run root, on the store the test runs on."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path / "run"
        self.clocks = 0
        self._pool: ThreadPoolExecutor | None = None
        self._gates: list[Gate] = []

    def clock(self) -> FakeClock:
        """Return the clock of one more process: no two ever draw the same nonce."""
        self.clocks += 1
        return FakeClock(prefix=f"{self.clocks:04x}")

    def plain(self) -> Store:
        """Return a store of one more process."""
        return MemoryStore(str(self.path)) if self.kind == "memory" else LocalStore(self.path, self.clock(), posix=Unsynced())

    def process(self) -> FaultStore:
        """Return a store of one more process, which can be paused, killed and cut off."""
        return Pausable(self.plain(), self._gates)

    def copy(self, number: int) -> World:
        """Return another root with the same names and bytes."""
        other = World(self.kind, self.path.parent / f"copy{number}")
        other.clocks = self.clocks
        names = self.names()
        for name in names:
            other.plain().create(name, self.plain().read(name))
        return other

    def open(self, store: Store | None = None, keep: Keep | None = None) -> Writer:
        """Let one more process claim the root."""
        return Writer(store or self.process(), self.clock(), keep or Keep(last=2))

    def start(self, action: Callable[[], T]) -> Future[T]:
        """Let a process do something in a thread of its own."""
        self._pool = self._pool or ThreadPoolExecutor(thread_name_prefix="test")
        return self._pool.submit(action)

    def close(self) -> None:
        """Let go of whoever a failed test has left standing at a gate, and wait for every thread."""
        for gate in self._gates:
            gate.release()
        if self._pool:
            self._pool.shutdown()

    def view(self) -> View:
        """Judge the root as any reader does."""
        return read(self.plain())

    def names(self, prefix: str = "") -> list[str]:
        """Return what lies in the root."""
        return [entry.name for entry in self.plain().list(prefix)]

    def numbers(self) -> list[int]:
        """Return the numbers whose manifests are there, live or not."""
        return [number for name in self.names(layout.GENERATIONS) if (number := layout.generation_number(name))]

    def value(self, number: int | None = None) -> float:
        """Return what a generation holds, the newest if no number is given; every byte is verified."""
        return value_in(oneshot.load(self.plain(), which="latest" if number is None else number))

    def check(self, *acknowledged: Manifest) -> View:
        """Check what must hold at every moment: I4, and that what was acknowledged counts or was dropped (I1, I5)."""
        view = self.view()
        report = verify(self.plain())
        assert [r for r in report.generations if r.number in view.live and r.state != "valid"] == []
        for manifest in acknowledged:
            found = view.listing.summaries.get(manifest.number)
            assert found is not None, f"acknowledged generation {manifest.number} is gone"
            assert found.write_id == manifest.write_id
            assert manifest.number in view.live, f"acknowledged generation {manifest.number} is not live"
        return view


class Writer:
    """Be one training process: a claim, and a policy whose weights are the number last saved."""

    def __init__(self, store: Store, clock: FakeClock, keep: Keep) -> None:
        self.store = store
        self.clock = clock
        self.opened: Opened = open_session(store, clock, keep, {}, incarnation=clock.nonce())
        head = self.opened.claimed.view.head
        if head is not None:
            # As after a resume; but `resumed_from`, which retention never takes, is for tests to set.
            with suppress(NotFoundError):
                self.session.build_on(decode_manifest(store.read(layout.manifest(head.number)), layout.manifest(head.number)))
                self.session.resumed_from = None

    @property
    def session(self) -> Session:
        return self.opened.session

    @property
    def term(self) -> int:
        return self.session.chain.term

    @property
    def head(self) -> int:
        return self.opened.claimed.settlement.head

    def save(self, value: float, *, fixed: float = 0.0, complete: bool = True) -> Manifest:
        """Save ``value`` as the policy's weights; ``fixed`` stands for what seldom changes, and is then shared."""
        state = {"policy": {"w": np.full(8, value, np.float64)}, "replay": {"rows": np.full(512, fixed, np.float64)}}
        step = 0 if math.isnan(value) else int(value)
        saved = write_with_relief(self.session, capture(state, Arena()), Order(step, "test", complete=complete))
        clear_up(self.session)
        return saved

    def rollback(self, to: int, keep: KeepRule | None = None) -> Manifest:
        """Publish generation ``to`` once more, as `milepost rollback` does."""
        target = choose(self.store, self.opened.claimed.view, to).manifest
        assert target is not None
        self.session.build_on(target)
        self.session.resumed_from = None
        draft = dataclasses.replace(target, reason="rollback", trim_of=None)
        return republish(self.session, draft, keep or (lambda live, _pinned: frozenset(live)))

    def stand_on(self, number: int) -> None:
        """Take a generation as the base, as a resume from it does."""
        self.session.build_on(choose(self.store, read(self.store), number).manifest)


def value_in(tree: object) -> float:
    """Return the number that a `Writer` saved."""
    assert isinstance(tree, dict)
    weights = tree["policy"]["w"]
    assert (weights == weights[0]).all()
    return float(weights[0])


def done(future: Future[T]) -> T:
    """Return what a process got, or raise what stopped it."""
    return future.result(HANG_S)


def blobs_of(*generations: Summary) -> set[str]:
    """Return the names of the blobs that these generations stand on."""
    return {blob.name for summary in generations for blob in summary.blobs}
