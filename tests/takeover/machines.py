"""Machines which share one root, a lease on it, and nothing else: not even the time, as far as their clocks say."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.clock import Clock, FakeClock
from milepost.engine import oneshot
from milepost.errors import NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.records import Summary
from milepost.store.base import Guard
from milepost.store.lease import LEASE, Lease, LeaseGuard, decode_lease
from milepost.store.lock import Holder
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import Training
from tests.takeover.scene import Ack

TTL_S = 30.0
HOUR_S = 3600.0


@dataclass
class Cluster:
    """Be one root, those who know it, and the time that passes for all of them."""

    root: str
    machines: list[Machine] = field(default_factory=list)
    now_s: float = 0.0

    def machine(self, wall_s: float = 0.0) -> Machine:
        """Return one more machine, whose wall clock shows so much more than it should."""
        made = Machine(self, len(self.machines) + 1, wall_s)
        self.machines.append(made)
        return made

    def wait(self, seconds: float) -> None:
        """Let time pass, and those who are awake renew their leases when it is time to."""
        until_s = self.now_s + seconds
        while due := [each for each in self.machines if each.is_awake and each.next_beat_s <= until_s]:
            machine = min(due, key=lambda each: each.next_beat_s)
            self._advance(machine.next_beat_s - self.now_s)
            machine.next_beat_s = self.now_s + TTL_S / 3
            machine.beat()
        self._advance(until_s - self.now_s)

    def _advance(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)
        for machine in self.machines:
            machine.clock.advance(seconds=max(0.0, seconds))


class LeasedStore(MemoryStore):
    """Remember its guards: their leases are renewed by the cluster, and not by threads."""

    def __init__(self, machine: Machine) -> None:
        lease = Lease(TTL_S, machine.who, renewed=False)
        super().__init__(machine.cluster.root, lease=lease, clock=machine.clock, wait=machine.cluster.wait)
        self.guards: list[LeaseGuard] = []

    def guard(self, *, wait_s: float, take_over: bool) -> Guard:
        made = super().guard(wait_s=wait_s, take_over=take_over)
        assert isinstance(made, LeaseGuard)
        self.guards.append(made)
        return made


class Machine:
    """Be a machine with one process: clocks of its own, and a view of the root that can be held up."""

    def __init__(self, cluster: Cluster, number: int, wall_s: float) -> None:
        self.cluster = cluster
        self.host = f"machine{number}"
        # No two monotonic clocks ever started at the same time.
        start_ns = number * 10**15
        self.clock = FakeClock(start_ns, 1_700_000_000 * 10**9 - start_ns + round(wall_s * 1e9), prefix=f"{number:04x}")
        self.inner = LeasedStore(self)
        self.store = FaultStore(self.inner)
        self.is_awake = True
        self.next_beat_s = cluster.now_s
        self.acknowledged: list[Ack] = []
        self.ended = ""

    def who(self, clock: Clock) -> Holder:
        return Holder(100, self.host, "boot", 1, clock.wall_ns(), "", "train.py")

    def beat(self) -> None:
        for guard in self.inner.guards:
            guard.beat()

    @property
    def holds_the_lease(self) -> bool:
        try:
            found = decode_lease(self.inner.read(LEASE))
        except NotFoundError:
            return False
        return found is not None and not found.released and found.holder.host == self.host

    @property
    def renews_the_lease(self) -> bool:
        """Return whether it will be seen to live: one that was taken over renews no more, even if the record is its own again."""
        return self.is_awake and self.holds_the_lease and any(guard.is_held for guard in self.inner.guards)

    def training(self, keep: Keep, *, take_over: bool = False) -> Training:
        return Training(self.store, keep=keep, clock=self.clock, take_over=take_over)

    def save(self, training: Training, *steps: int) -> None:
        for step in steps:
            self.note(training.save(step))

    def rollback(self, to: int, *, take_over: bool = False) -> None:
        self.note(oneshot.rollback(self.store, to, take_over=take_over))

    def note(self, saved: Summary) -> None:
        self.acknowledged.append(Ack(saved.number, saved.step, saved.term))
