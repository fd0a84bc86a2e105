"""Any order of starts, saves, pauses, takeovers, rollbacks, deaths and lying clocks, over one root with a lease.

A machine that stands still does so before any operation of its save, with its heartbeat or without. Whatever happens: what was
acknowledged counts until a published manifest drops it, no two are told that they saved under one number, and who was fenced
is told of no save that the claimer had not found. Nobody's wall clock, and no lease, has a say in that. A13, B6, rules 1 to 13
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from milepost.errors import ConflictError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import View, read
from milepost.store.memory import MemoryStore
from milepost.testing.faults import HANG_S, Gate, Killed
from tests.engine.training import Training, without_git
from tests.takeover.machines import HOUR_S, TTL_S, Cluster, Machine
from tests.takeover.scene import contents

EXAMPLES = int(os.environ.get("MILEPOST_LEASE_EXAMPLES", "40"))
MACHINES = 3

roots = itertools.count()


@dataclass
class Process:
    """Be what runs on a machine."""

    machine: Machine
    training: Training | None = None
    gate: Gate | None = None
    running: Future[None] | None = None


class LeasedWriters(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(f"leased-writers-{next(roots)}")
        self.pool = ThreadPoolExecutor(thread_name_prefix="test")
        self.processes = [Process(self.cluster.machine()) for _ in range(MACHINES)]
        self.step = 0

    def teardown(self) -> None:
        for process in self.processes:
            process.machine.store.dead = True
            if process.gate:
                process.gate.release()
        self.pool.shutdown()
        for process in self.processes:
            if process.training:
                process.training.engine.close()

    # --- what a process does

    @initialize(last=st.integers(1, 3))
    def begin(self, last: int) -> None:
        self._start(self.processes[0], last, take_over=False)
        for _ in range(2):
            self._save(self.processes[0], 1000, asleep=False)

    @precondition(lambda self: self._those(idle=True))
    @rule(data=st.data(), last=st.integers(1, 3), take_over=st.booleans())
    def start(self, data: st.DataObject, last: int, take_over: bool) -> None:
        self._start(data.draw(st.sampled_from(self._those(idle=True))), last, take_over=take_over)

    @precondition(lambda self: self._those(trains=True))
    @rule(data=st.data(), before=st.integers(0, 24), asleep=st.booleans())
    def save_and_stand_still(self, data: st.DataObject, before: int, asleep: bool) -> None:
        self._save(data.draw(st.sampled_from(self._those(trains=True))), before, asleep)

    @precondition(lambda self: self._those(trains=True))
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        self._save(data.draw(st.sampled_from(self._those(trains=True))), 1000, asleep=False)

    @precondition(lambda self: self._those(stands=True))
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        self._wake(data.draw(st.sampled_from(self._those(stands=True))))

    @precondition(lambda self: self._those(idle=True))
    @rule(data=st.data(), back=st.integers(1, 2), take_over=st.booleans())
    def roll_back(self, data: st.DataObject, back: int, take_over: bool) -> None:
        """Roll back from the command line of a machine that trains nothing."""
        view = self._view()
        if view is None or len(view.live) <= back:
            return
        machine, target = data.draw(st.sampled_from(self._those(idle=True))).machine, sorted(view.live)[-1 - back]
        refusal = refusal_of(lambda: machine.rollback(target, take_over=take_over))
        assert refusal is None or (refusal.kind, take_over) == ("held", False)

    @precondition(lambda self: self._those(trains=True))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self._those(trains=True)))
        process.training.engine.close()
        process.training = None

    @rule(index=st.integers(0, MACHINES - 1))
    def die(self, index: int) -> None:
        process = self.processes[index]
        process.machine.store.dead = True
        process.machine.is_awake = False
        if process.gate is not None:
            self._wake(process)
        self.processes[index] = Process(self.cluster.machine())

    # --- what the world does

    @rule(
        seconds=st.sampled_from([1.0, TTL_S / 3, TTL_S, 5 * TTL_S]),
        index=st.integers(0, MACHINES - 1),
        hours=st.integers(-1000, 1000),
    )
    def time_passes_and_a_wall_clock_jumps(self, seconds: float, index: int, hours: int) -> None:
        self.processes[index].machine.clock.epoch_ns += hours * round(HOUR_S * 1e9)
        self.cluster.wait(seconds)

    # --- what must hold

    @invariant()
    def what_was_acknowledged_counts_until_a_published_manifest_drops_it(self) -> None:
        view = self._view()
        told = [ack for machine in self.cluster.machines for ack in machine.acknowledged]
        if view is None or view.head is None:
            assert not told
            return
        assert len({ack.number for ack in told}) == len(told), "two were told that they saved under one number"
        assert view.head.number >= max((ack.number for ack in told), default=0), "the newest acknowledged one is lost"
        for ack in told:
            # A fenced writer may leave a void manifest under a number whose own was retired: that one is not what was told.
            assert ack.number not in view.void or view.listing.summaries[ack.number].term != ack.term
            found = view.live.get(ack.number)
            if found is None:
                assert ack.number not in view.head.keep
            else:
                assert (found.term, found.step) == (ack.term, ack.step)
            for settlement in view.terms.settlements.values():
                if settlement.term > ack.term and not settlement.dead:
                    assert ack.number <= settlement.head, "it was fenced, and told that it saved"

    @invariant()
    def whatever_is_live_is_whole(self) -> None:
        assert set(contents(MemoryStore(self.cluster.root)).values()) <= set(range(self.step + 1))

    # --- how it is done

    def _those(self, *, idle: bool = False, trains: bool = False, stands: bool = False) -> list[Process]:
        """Return the processes that do nothing, that train and are between two saves, or that stand still in one."""
        return [
            each
            for each in self.processes
            if (idle and each.training is None)
            or (trains and each.training is not None and each.gate is None)
            or (stands and each.gate is not None)
        ]

    def _start(self, process: Process, last: int, *, take_over: bool) -> None:
        living = [each.machine.host for each in self.processes if each is not process and each.machine.renews_the_lease]
        training = process.machine.training(Keep(last=last), take_over=take_over)
        refusal = refusal_of(training.engine.resume)
        if refusal is None:
            assert take_over or not living
            assert process.machine.holds_the_lease
            process.training = training
            return
        training.engine.close()
        assert (refusal.kind, [refusal.facts["host"]], take_over) == ("held", living, False)

    def _save(self, process: Process, before: int, asleep: bool) -> None:
        self.step += 1
        step, training = self.step, process.training
        assert training is not None
        self._run(process, lambda: process.machine.save(training, step), before, asleep)

    def _wake(self, process: Process) -> None:
        assert process.gate is not None
        process.gate.release()
        self._end(process)

    def _view(self) -> View | None:
        try:
            return read(MemoryStore(self.cluster.root))
        except NotFoundError:
            return None

    def _run(self, process: Process, act: Callable[[], None], before: int, asleep: bool) -> None:
        """Let a process act in a thread of its own, until it has ended or stands before an operation."""
        gate = process.machine.store.pause_before(len(process.machine.store.operations) + before)
        process.running = self.pool.submit(act)
        process.running.add_done_callback(lambda _: gate.reached.set())
        gate.wait_until_reached()
        if process.running.done():
            gate.release()  # it was never reached, and would hold up what comes next
            self._end(process)
        else:
            process.gate = gate
            process.machine.is_awake = not asleep

    def _end(self, process: Process) -> None:
        assert process.running is not None
        machine, running = process.machine, process.running
        machine.is_awake = not machine.store.dead
        process.running = process.gate = None
        with suppress(Killed) if machine.store.dead else nullcontext():
            fenced = refusal_of(lambda: running.result(HANG_S))
            if fenced is not None:
                self._is_fenced(process, fenced)

    def _is_fenced(self, process: Process, error: ConflictError) -> None:
        view, training = self._view(), process.training
        assert view is not None
        assert training is not None
        assert error.kind == "fenced"
        assert view.terms.highest > training.engine.claim().chain.term
        assert refusal_of(lambda: training.save(self.step)) is error, "once fenced, it is for good"
        training.engine.close()
        process.training = None


def refusal_of(action: Callable[[], object]) -> ConflictError | None:
    """Return what a process was told that had to give way to another, or None."""
    try:
        action()
    except ConflictError as error:
        return error
    return None


def test_no_order_of_events_loses_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LeasedWriters, settings=settings(max_examples=EXAMPLES, stateful_step_count=30)
    )
