"""A world around the service's brain: records, memory and a disk that can fail; processes that begin, speak late, and die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from milepost.service.core.events import (
    Accept,
    Accepted,
    Action,
    Answer,
    Arrived,
    Begin,
    Bring,
    Caller,
    Cancel,
    Discard,
    Done,
    Erase,
    Erased,
    Event,
    Fetch,
    Finish,
    Hello,
    Hold,
    Record,
    Recorded,
    Refused,
    Release,
    Reply,
    Resume,
    RollBack,
    Settle,
    Spill,
    Spilled,
    Take,
    Tick,
    Welcome,
)
from milepost.service.core.records import Began, Commit, Committed, Entry, Role, RolledBack, Shard, Tier, Weights
from milepost.service.core.service import Service, Settings, begin

SECOND = 10**9


class World:
    """Run a service, carry out what it wants done when somebody says so, and look at all it does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now_ns = 0
        self.entries: list[Entry] = []
        self.memory: dict[Commit, tuple[Shard, ...]] = {}
        self.disk: dict[Commit, tuple[Shard, ...]] = {}
        self.staged: dict[tuple[Caller, str], tuple[str, dict[str, Shard], int]] = {}
        self.recording: Record | None = None
        self.spilling: Spill | None = None
        self.erasing: list[Erase] = []
        self.open: dict[str, Event] = {}
        self.answers: dict[str, Answer] = {}
        self.visible: dict[Commit, Weights] = {}
        self.leases: dict[tuple[Caller, Commit], tuple[Tier, ...]] = {}
        self.granted: dict[tuple[Caller, Commit], list[str]] = {}
        self.heard: dict[Caller, int] = {}
        self._requests = 0
        self._start()

    # The life of the service.

    def _start(self) -> None:
        self.entries.append(begin(self.entries, self.memory.keys(), self.disk.keys()))
        self.service = Service(self.settings, self.entries, self.memory.keys(), "run")
        self.say(Tick())

    def crash(self, *, host: bool, record_landed: bool) -> None:
        """Kill the service, with the machine or without. Of what was being written down all is there, or nothing."""
        if self.recording is not None and record_landed:
            self.entries += self.recording.entries
            for entry in self.recording.entries:
                if isinstance(entry, Committed):
                    self._settle_landed(entry.weights)
        if host:
            self.memory.clear()
        self.staged.clear()
        self.open.clear()
        self.leases.clear()
        self.heard.clear()
        self.recording, self.spilling, self.erasing = None, None, []
        self._start()

    def _settle_landed(self, weights: Weights) -> None:
        for (caller, key), (tier, shards, _) in self.staged.items():
            if (caller.component, key) == (weights.producer, weights.key):
                where = self.memory if tier == "memory" else self.disk
                where[weights.at] = tuple(shards[slot] for slot in sorted(shards))

    # What it is told.

    def say(self, event: Event) -> Answer | None:
        """Hand an event in, and do at once what needs no time. Return the answer, if it came at once."""
        before = self.service.catalogue.live
        actions = self.service.handle(event, self.now_ns)
        request = None if isinstance(event, Cancel) else getattr(event, "request", None)
        if request is not None:
            assert request not in self.open
            self.open[request] = event
        caller = getattr(event, "caller", None)
        if caller is not None and self._is_current(caller):
            self.heard[caller] = self.now_ns
        for action in actions:
            self._do(action)
        self._check(before)
        return None if request is None else self.answers.get(request)

    def _do(self, action: Action) -> None:
        match action:
            case Reply(request, answer):
                self._answered(request, answer)
            case Record():
                assert self.recording is None
                self.recording = action
            case Accept(caller, key, tier):
                assert (caller, key) not in self.staged
                event = next(each for each in self.open.values() if isinstance(each, Begin) and each.key == key)
                self.staged[caller, key] = (tier, {}, sum(size for _, size in event.sizes))
            case Discard(caller, key):
                del self.staged[caller, key]
            case Settle(caller, key, at):
                tier, shards, _ = self.staged.pop((caller, key))
                (self.memory if tier == "memory" else self.disk)[at] = tuple(shards[slot] for slot in sorted(shards))
            case Spill(at):
                assert self.spilling is None
                assert at in self.memory
                assert Erase(at, "memory") not in self.erasing, "it is about to be gone"
                self.spilling = action
            case Erase(at, tier):
                assert not any(held == at for (_, held) in self.leases), "a reader has it"
                assert (at, tier) != (self.spilling and self.spilling.at, "memory"), "it is being written to disk"
                self.erasing.append(action)

    def _answered(self, request: str, answer: Answer) -> None:
        event = self.open.pop(request)
        self.answers[request] = answer
        if isinstance(answer, Welcome):
            assert isinstance(event, Hello)
            for other in [other for (other, _) in self.leases if other.component == event.caller.component]:
                if other != event.caller:
                    self._let_go(other)
        if isinstance(answer, Take):
            assert isinstance(event, Fetch)
            assert answer.tiers
            assert not self.service.catalogue.held, "nobody is given weights while a trainer holds"
            for tier in answer.tiers:
                assert (self.memory if tier == "memory" else self.disk)[answer.weights.at] == answer.weights.shards
            lease = event.caller, answer.weights.at
            self.granted[lease] = [*self.granted.get(lease, []), request] if lease in self.leases else [request]
            self.leases[lease] = answer.tiers
            assert self.service.last(event.caller) == answer.weights.at
        if isinstance(answer, Done):
            assert any(isinstance(entry, Committed) and entry.weights == answer.weights for entry in self.entries)
            if answer.durable:
                durable = self.service.catalogue.durable
                assert durable in self.disk
                assert answer.weights.at in set(self.service.catalogue.line(durable))

    def _is_current(self, caller: Caller) -> bool:
        current = self.service.catalogue.current.get(caller.component)
        return current is not None and current.incarnation == caller.incarnation

    # What takes time.

    def record(self, failure: str = "") -> None:
        record, self.recording = self.recording, None
        assert record is not None
        if not failure:
            self.entries += record.entries
        self.say(Recorded(record.ticket, failure))

    def spill(self, failure: str = "") -> None:
        spill, self.spilling = self.spilling, None
        assert spill is not None
        if not failure:
            self.disk[spill.at] = self.memory[spill.at]
        self.say(Spilled(spill.at, failure))

    def erase(self, index: int = 0) -> None:
        erase = self.erasing.pop(index)
        for (_, at), tiers in self.leases.items():
            assert at != erase.at or erase.tier not in tiers, "a reader was sent there"
        del (self.memory if erase.tier == "memory" else self.disk)[erase.at]
        self.say(Erased(erase.at, erase.tier))

    def settle_down(self) -> None:
        """Let all that is under way end well."""
        while self.recording or self.spilling or self.erasing:
            if self.recording:
                self.record()
            elif self.spilling:
                self.spill()
            else:
                self.erase()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)
        for caller, heard_ns in [*self.heard.items()]:
            if heard_ns + self.settings.lease_ns <= self.now_ns:
                self._let_go(caller)
                del self.heard[caller]
        self.say(Tick())

    def _let_go(self, caller: Caller) -> None:
        for held in [held for held in self.leases if held[0] == caller]:
            del self.leases[held]

    # What clients do.

    def ask(self, make: Callable[[str], Event]) -> Answer | None:
        self._requests += 1
        return self.say(make(f"r{self._requests}"))

    def join(self, caller: Caller, role: Role, epoch: int, step: int | None = None) -> Answer | None:
        self.ask(lambda request: Hello(request, caller, role, epoch, step))
        self.settle_down()
        return self.answers.get(f"r{self._requests}")

    def begin(self, caller: Caller, key: str, step: int, sizes: dict[str, int], parent: Commit | None = None) -> Answer | None:
        return self.ask(lambda request: Begin(request, caller, key, step, step, tuple(sizes.items()), parent))

    def bring(self, caller: Caller, key: str, shard: Shard) -> Answer | None:
        answer = self.ask(lambda request: Arrived(request, caller, key, shard))
        staged = self.staged.get((caller, key))
        if staged is not None and isinstance(answer, Accepted):
            staged[1][shard.slot] = shard
        return answer

    def finish(self, caller: Caller, key: str, *, durable: bool = False, wait_s: float = 1e6) -> Answer | None:
        until_ns = self.now_ns + round(wait_s * SECOND)
        return self.ask(lambda request: Finish(request, caller, key, durable, until_ns))

    def fetch(self, caller: Caller, has: Commit | None = None, wait_s: float = 0.0, **want: object) -> Answer | None:
        until_ns = self.now_ns + round(wait_s * SECOND)
        return self.ask(lambda request: replace(Fetch(request, caller, has, until_ns), **want))  # type: ignore[arg-type]

    def release(self, caller: Caller, at: Commit) -> None:
        self.leases.pop((caller, at), None)
        self.say(Release(caller, at))

    def claim(self, caller: Caller, at: Commit) -> None:
        """Have a version that this service has not given, and is about to hear of."""
        tiers = self.service.tiers(at)
        if tiers and self._is_current(caller):
            self.granted[caller, at] = []
            self.leases[caller, at] = tiers

    def hold(self, caller: Caller) -> Answer | None:
        return self.ask(lambda request: Hold(request, caller))

    def resume(self, caller: Caller) -> Answer | None:
        return self.ask(lambda request: Resume(request, caller))

    def cancel(self, request: str) -> None:
        """Go away without having heard an answer to a fetch, or to a finish."""
        self.open.pop(request, None)
        for lease in [lease for lease in self.leases if self.granted[lease] == [request]]:
            del self.leases[lease]
        self.say(Cancel(request))

    def roll_back(self, to: Commit) -> Answer | None:
        return self.ask(lambda request: RollBack(request, to, "test"))

    def commit(self, caller: Caller, key: str, step: int, size_bytes: int = 1, parent: Commit | None = None) -> Weights:
        """Bring a version whole, and return it."""
        assert isinstance(self.begin(caller, key, step, {"all": size_bytes}, parent), Bring)
        assert self.bring(caller, key, Shard("all", size_bytes, f"{key}-{step}")) == Accepted()
        self.settle_down()
        done = self.finish(caller, key)
        assert isinstance(done, Done), done
        return done.weights

    # What always holds.

    def _check(self, live_before: Commit | None) -> None:
        catalogue = self.service.catalogue
        for at, weights in catalogue.weights.items():
            assert self.visible.setdefault(at, weights) == weights, "a visible version never changes"
        if catalogue.live is not None:
            assert catalogue.live in self.memory or catalogue.live in self.disk, "live can be fetched"
        if catalogue.durable is not None:
            assert self.disk[catalogue.durable] == catalogue.weights[catalogue.durable].shards, "durable survives the host"
            assert catalogue.durable in set(catalogue.line(catalogue.live))
        for at in catalogue.stored:
            assert at in self.disk or any(erase.at == at for erase in self.erasing)
        if live_before is not None and catalogue.live != live_before:
            last = self.entries[-1]
            grew = catalogue.live is not None and live_before in set(catalogue.line(catalogue.live))
            assert (
                grew
                or isinstance(last, RolledBack | Began)
                or any(isinstance(entry, Committed) and entry.weights.at == catalogue.live for entry in self.entries[-2:])
            ), "the live pointer went back, and nothing says why"
        for caller, at in self.leases:
            assert at in self.service.reads(caller), "what somebody reads is known to be read"
        held = sum(size for tier, _, size in self.staged.values() if tier == "memory")
        held += sum(self.visible[at].size_bytes for at in self.memory)
        assert held <= max(self.settings.memory_bytes, 0), "memory is bounded"
        assert self.service.memory_bytes >= held


__all__ = ["Accepted", "Bring", "Caller", "Commit", "Done", "Refused", "Settings", "Shard", "Take", "Welcome", "World"]
