"""Whatever is said in whatever order, by whomever, and whoever is killed: what was promised holds. C1-C4, C13, C14"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from milepost.service.core.events import Fetch, Finish, Heartbeat, Take
from tests.service.core.world import Caller, Commit, Done, Refused, Settings, Shard, World

_SLOTS = {"a": 3, "b": 4}


class Interleavings(RuleBasedStateMachine):
    @initialize(memory=st.sampled_from([0, 7, 14, 21, 70]), keep=st.integers(1, 2), disk=st.integers(1, 3))
    def begin(self, memory: int, keep: int, disk: int) -> None:
        self.world = World(Settings(memory, memory_keep=keep, disk_keep=disk))
        self.starts = 0
        self.callers: list[Caller] = []
        self.begun: list[tuple[Caller, str, int, str]] = []
        self.lost: set[Commit] = set()
        self.promised: list[Commit] = []

    def who(self, data: st.DataObject, role: str) -> Caller:
        """Mostly somebody who may; now and then anybody, also one who is long dead."""
        current = self.world.service.catalogue.current.values()
        may = [Caller(joined.component, joined.incarnation) for joined in current if joined.role == role]
        anybody = data.draw(st.integers(0, 7)) == 0
        return data.draw(st.sampled_from(self.callers if anybody or not may else may))

    @rule(component=st.sampled_from(["trainer", "trainer", "other", "s0", "s1"]), step=st.none() | st.integers(0, 12))
    def start(self, component: str, step: int | None) -> None:
        self.starts += 1
        caller = Caller(component, f"i{self.starts}")
        self.callers.append(caller)
        self.world.join(caller, "sampler" if component.startswith("s") else "trainer", self.starts, step)

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), step=st.integers(0, 12), tag=st.sampled_from("xy"), again=st.booleans(), parent=st.booleans())
    def commit(self, data: st.DataObject, step: int, tag: str, again: bool, parent: bool) -> None:
        caller = self.who(data, "trainer")
        key = f"k{data.draw(st.integers(0, 30))}"
        if again and self.begun:
            caller, key, step, tag = data.draw(st.sampled_from(self.begun))
        known = sorted(self.world.service.catalogue.weights)
        chosen = data.draw(st.sampled_from(known)) if parent and known and data.draw(st.integers(0, 3)) == 0 else None
        self.world.begin(caller, key, step, _SLOTS, chosen)
        self.begun.append((caller, key, step, tag))
        if data.draw(st.booleans()):  # most bring all of it at once
            for slot, size in _SLOTS.items():
                self.world.bring(caller, key, Shard(slot, size, f"{key}-{step}-{slot}"))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), slot=st.sampled_from(sorted(_SLOTS)), other=st.booleans())
    def bring(self, data: st.DataObject, slot: str, other: bool) -> None:
        caller, key, step, tag = data.draw(st.sampled_from(self.begun[-4:]))
        digest = f"{key}-{step}-{slot}" + (f"-{tag}" if other else "")
        self.world.bring(caller, key, Shard(slot, _SLOTS[slot], digest))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), durable=st.booleans(), wait_s=st.sampled_from([0.0, 10.0, 1e6]))
    def finish(self, data: st.DataObject, durable: bool, wait_s: float) -> None:
        caller, key, _, _ = data.draw(st.sampled_from(self.begun[-6:]))
        self.world.finish(caller, key, durable=durable, wait_s=wait_s)

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), wait_s=st.sampled_from([0.0, 10.0, 1e6]), want=st.sampled_from(["newest", "exact", "at least"]))
    def fetch(self, data: st.DataObject, wait_s: float, want: str) -> None:
        known = [None, *sorted(self.world.visible)]
        ahead = Commit(self.world.service.catalogue.term, self.world.service.catalogue.next_number)
        has, at = data.draw(st.sampled_from(known)), data.draw(st.sampled_from([*known, ahead]))
        self.world.fetch(self.who(data, "sampler"), has, wait_s, want=want, at=at)

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.world.release(*data.draw(st.sampled_from(list(self.world.leases))))

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), claims=st.booleans(), drops=st.booleans(), twice=st.booleans())
    def beat(self, data: st.DataObject, claims: bool, drops: bool, twice: bool) -> None:
        caller, world = self.who(data, "sampler"), self.world
        if drops and world.leases:
            world.leases.pop(data.draw(st.sampled_from(list(world.leases))))  # what gave it was not heard, perhaps
        if claims and world.visible:
            world.claim(caller, data.draw(st.sampled_from(sorted(world.visible))))  # of the service before, perhaps
        reads = frozenset(at for (reader, at) in world.leases if reader == caller)
        for _ in range(1 + twice):
            world.say(Heartbeat(caller, reads))
        if twice:
            assert {*world.service.reads(caller)} == reads, "who says twice what it has has that, and no more"

    @precondition(lambda self: self.world.visible)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.world.roll_back(data.draw(st.sampled_from(sorted(self.world.visible))))

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), holds=st.booleans())
    def hold(self, data: st.DataObject, holds: bool) -> None:
        held = self.world.service.catalogue.held
        if holds and held:
            return  # mostly nobody holds
        caller = self.who(data, "trainer")
        self.world.hold(caller) if holds else self.world.resume(caller)

    @precondition(lambda self: self.world.open or self.world.answers)
    @rule(data=st.data(), answered=st.booleans())
    def cancel(self, data: st.DataObject, answered: bool) -> None:
        waiting = [request for request, event in self.world.open.items() if isinstance(event, Fetch | Finish)]
        taken = [request for request, answer in self.world.answers.items() if isinstance(answer, Take)][-4:]
        requests = taken if answered else waiting
        if requests:
            self.world.cancel(data.draw(st.sampled_from(requests)))

    @precondition(lambda self: self.world.recording)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def record(self, fails: bool) -> None:
        self.world.record("disk full" if fails else "")

    @precondition(lambda self: self.world.spilling)
    @rule(fails=st.sampled_from([False, False, True]))
    def spill(self, fails: bool) -> None:
        self.world.spill("disk full" if fails else "")

    @precondition(lambda self: self.world.erasing)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        self.world.erase(data.draw(st.integers(0, len(self.world.erasing) - 1)))

    @rule(seconds=st.sampled_from([1.0, 30.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(host=st.booleans(), landed=st.booleans(), now=st.integers(0, 3))
    def crash(self, host: bool, landed: bool, now: int) -> None:
        if now:
            return  # a run is mostly longer than that
        durable, held = self.world.service.catalogue.durable, {*self.world.service.catalogue.held}
        self.world.crash(host=host, record_landed=landed)
        catalogue = self.world.service.catalogue
        if durable is not None and not landed:
            assert catalogue.durable == durable, "what was durable is where recovery begins"
        assert landed or catalogue.held == held, "who holds holds over the end of the service"

    @invariant()
    def what_is_lost_stays_lost(self) -> None:
        catalogue = self.world.service.catalogue
        assert self.lost <= catalogue.lost
        assert catalogue.lost == catalogue.weights.keys() - set(catalogue.line(catalogue.live))
        self.lost = {*catalogue.lost}

    @invariant()
    def an_old_incarnation_is_refused_and_changes_nothing(self) -> None:
        world, catalogue = self.world, self.world.service.catalogue
        former = [caller for caller in self.callers if catalogue.is_former(caller.component, caller.incarnation)]
        for caller in former[-1:]:
            state = (catalogue.live, catalogue.durable, len(catalogue.weights), world.recording, dict(world.staged))
            for answer in (world.begin(caller, "late", 3, _SLOTS), world.fetch(caller), world.finish(caller, "late")):
                assert isinstance(answer, Refused)
                assert answer.kind == "superseded"
            assert state == (catalogue.live, catalogue.durable, len(catalogue.weights), world.recording, dict(world.staged))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle_down()
        self.world.pass_time(1e7)
        self.world.settle_down()
        assert not self.world.open, "each request has its answer"
        assert not self.world.staged, "nothing that was begun lies about"
        catalogue = self.world.service.catalogue
        for answer in self.world.answers.values():
            if isinstance(answer, Done) and answer.durable and answer.weights.at not in catalogue.lost:
                assert catalogue.is_durable(answer.weights.at), "what a commit promised holds"


def test_whatever_is_said_what_was_promised_holds() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Interleavings, settings=hypothesis_settings(max_examples=200, stateful_step_count=80, deadline=None, print_blob=True)
    )
