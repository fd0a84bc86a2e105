"""The whole life of a run against a plain model: any order of saves, restarts, takeovers, rollbacks, pins and damage.

The model knows nothing of files: a few dictionaries and sets, and `plain_selection`, retention in the words of the
design. After each step one invariant compares everything that lies in the store with what the model says may lie there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from milepost.clock import FakeClock
from milepost.engine import oneshot, provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, CorruptError, NotFoundError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.hints import read_latest, read_progress
from milepost.publish.manifest import decode_manifest
from milepost.publish.pins import pin, unpin
from milepost.publish.view import read
from milepost.records import Summary
from milepost.store.memory import MemoryStore
from tests.lifecycle.test_retain import plain_selection
from tests.publish.summaries import generation

KEEPS = [
    *(Keep(last=1), Keep(last=3), Keep(last=2, best=1, by="score"), Keep(last=1, best=2, by="score", mode="min")),
    *(Keep(last=3, independent=2), Keep(last=2, independent=2)),
]
INTERVALS = [1, 7, 10]
SCORES = st.sampled_from([0.0, 1.0, 1.0, 2.0, -3.0, math.nan, math.inf])
NAN = math.nan


@dataclass(frozen=True)
class Content:
    """Be what a generation holds."""

    step: int
    w: float
    fixed: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and repr(self) == repr(other)  # NaN is NaN here

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass
class Saved:
    """Be one generation, in the model."""

    summary: Summary
    content: Content
    blobs: frozenset[str]
    line: frozenset[int]
    ends: dict[str, str] = field(default_factory=dict)
    """By blob, the component whose bytes are its last: those that `Life.damage` hits."""


@dataclass
class Process:
    """Be one engine and what its user sees."""

    engine: CheckpointEngine
    state: dict[str, Any]
    keep: Keep
    interval: int
    ready: bool = False
    base: int = 0
    shares: bool = True
    """The base was verified whole: what did not change since is not written again."""
    resumed_from: int = 0
    last_step: int = 0
    looked_at: int | None = None
    best: float | None = None
    new_best: bool = False
    pending: float | None = None
    fenced: bool = False

    def content(self) -> Content:
        return Content(self.state["counters"]["step"], float(self.state["policy"]["w"][0]), int(self.state["replay"]["rows"][0]))


@dataclass
class Model:
    """Say what is true of the run root."""

    saved: dict[int, Saved] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    """The live ones: what the head names, itself included. A pinned one is kept by every manifest that follows."""
    pinned: set[int] = field(default_factory=set)
    strays: set[int] = field(default_factory=set)
    """Numbers of manifests that a fenced writer has left."""
    litter: set[str] = field(default_factory=set)
    """Blobs that a fenced writer has left."""
    damaged: set[str] = field(default_factory=set)
    head: int = 0
    next: int = 1
    settled_next: int = 1
    term: int = 0
    stale: bool = False
    """A blob was damaged: a process that has verified this head need not see it before it loads."""

    @property
    def files(self) -> set[int]:
        return self.kept | self.strays

    @property
    def line(self) -> set[int]:
        """Return what the head's state goes back to, as far as it is kept: a fallback goes nowhere else."""
        return self.kept & self.saved[self.head].line if self.head else set()

    def is_sound(self, number: int) -> bool:
        return not self.saved[number].blobs & self.damaged

    def hits(self, number: int) -> set[str]:
        """Return the components of a generation which are damaged."""
        return {component for blob, component in self.saved[number].ends.items() if blob in self.damaged}

    def choose(self, wanted: list[int]) -> tuple[int, bool] | None:
        """Return what a resume takes, and whether that is whole: never one that is not where one is."""
        whole = [number for number in wanted if self.is_sound(number)]
        partly = [number for number in wanted if self.hits(number) <= {"replay"}]
        return (whole[0], True) if whole else (partly[0], False) if partly else None

    def claimed(self) -> None:
        """Sweep, and settle on the head and the next number."""
        self.settled_next = self.next = max([self.settled_next, *(number + 1 for number in self.files)])
        self.strays, self.litter = set(), set()
        self.term += 1
        self.stale = False

    def take_number(self) -> int:
        while self.next in self.files:
            self.next += 1
        return self.next

    def published(
        self,
        keep: Keep | None,
        summary: Summary,
        content: Content,
        blobs: frozenset[str],
        base: int,
        resumed_from: int,
        ends: dict[str, str],
    ) -> None:
        number = summary.number
        line = frozenset({number, *({base} | self.saved[base].line if base else ())})
        self.saved[number] = Saved(summary, content, blobs, line, ends)
        candidates = {n: self.saved[n].summary for n in self.kept | {number}}
        self.kept = set(candidates) if keep is None else plain_selection(keep, candidates, self.pinned | {resumed_from})
        self.head, self.next = number, number + 1
        self.stale = False

    def ranked(self, keep: Keep) -> list[int]:
        scored = []
        for number in self.line:
            metric = self.saved[number].summary.metrics.get("score")
            if metric and not math.isnan(metric.number) and self.saved[number].summary.healthy:
                scored.append((metric.number if keep.mode == "max" else -metric.number, number))
        return [number for _, number in sorted(scored, reverse=True)]

    def candidates(self, which: object, keep: Keep) -> list[int]:
        if which == "best":
            return self.ranked(keep)
        if which == "latest":
            return [number for number in sorted(self.line, reverse=True) if self.saved[number].summary.healthy]
        assert isinstance(which, int)
        return [which]


class Life(RuleBasedStateMachine):
    """Do to a run whatever may be done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.model = Model()
        self.process: Process | None = None
        self.zombies: list[Process] = []
        self.clocks = 0
        self.values = 0
        self.began = False

    def clock(self) -> FakeClock:
        self.clocks += 1
        return FakeClock(prefix=f"{self.clocks:04x}")

    # --- starting and stopping ------------------------------------------------------------------------------------------

    def start_with(self, keep: Keep, interval: int) -> None:
        state = {"policy": {"w": np.zeros(4)}, "replay": {"rows": np.zeros(512)}, "counters": {"step": 0}}
        engine = CheckpointEngine(
            self.store, state=state, when=every(steps=interval), keep=keep, writer="inline", take_over=True, clock=self.clock()
        )
        engine.claim()
        self.process = Process(engine, state, keep, interval, ready=not self.model.kept)
        self.model.claimed()

    @initialize(keep=st.sampled_from(KEEPS), interval=st.sampled_from(INTERVALS))
    def begin(self, keep: Keep, interval: int) -> None:
        self.start_with(keep, interval)

    @rule(
        keep=st.sampled_from(KEEPS),
        interval=st.sampled_from(INTERVALS),
        close=st.booleans(),
        resume=st.sampled_from([True, True, False]),
    )
    def restart(self, keep: Keep, interval: int, close: bool, resume: bool) -> None:
        """Start another process, with other settings; the one before it has ended, or sleeps and may wake."""
        if self.process and close:
            self.process.engine.close()
        elif self.process:
            self.zombies.append(self.process)
        self.start_with(keep, interval)
        if resume:
            self.resume("latest")

    def teardown(self) -> None:
        for process in [*self.zombies, *([self.process] if self.process else [])]:
            process.engine.close()

    # --- training -------------------------------------------------------------------------------------------------------

    def running(self) -> Process:
        assert self.process
        return self.process

    @rule(fixed=st.booleans(), sick=st.sampled_from([False, False, False, True]), steps=st.integers(1, 12))
    def train(self, fixed: bool, sick: bool, steps: int) -> None:
        state = self.running().state
        self.values += 1
        state["policy"]["w"][:] = NAN if sick else self.values
        state["counters"]["step"] += steps
        if fixed:
            state["replay"]["rows"][:] = self.values

    @rule(score=SCORES)
    def report(self, score: float) -> None:
        process = self.running()
        process.engine.report(process.state["counters"]["step"], {"score": score})
        if process.keep.by and process.keep.best:
            better = not math.isnan(score) and (
                process.best is None or (score > process.best if process.keep.mode == "max" else score < process.best)
            )
            if better:
                process.best, process.new_best = score, True
            elif process.new_best:
                return
        process.pending = score

    @rule()
    def save(self) -> None:
        process = self.running()
        step = process.state["counters"]["step"]
        if not process.ready:
            with pytest.raises(UsageError, match="not resumed"):
                process.engine.save(step)
            return
        process.engine.save(step)
        self.saved(process)

    @precondition(lambda self: self.process and self.process.ready)
    @rule(fixed=st.booleans(), times=st.integers(1, 4))
    def train_and_save(self, fixed: bool, times: int) -> None:
        for _ in range(times):
            self.train(fixed, False, 3)
            self.save()

    @precondition(lambda self: self.process and self.process.ready)
    @rule()
    def save_if_due(self) -> None:
        process = self.running()
        step, last, interval = process.state["counters"]["step"], process.last_step, process.interval
        due = step // interval > last // interval if step >= last else step >= interval
        assert process.engine.save_if_due(step) is (due or process.new_best)
        if due or process.new_best:
            self.saved(process)

    def saved(self, process: Process) -> None:
        """Note in the model what a save by the owner does."""
        self.began = True
        model, content = self.model, process.content()
        number, head = model.take_number(), process.engine.wait()
        assert head is not None
        assert (head.number, head.parent, head.step, head.term) == (number, model.head, content.step, model.term)
        summary = generation(
            number,
            term=model.term,
            healthy=not math.isnan(content.w),
            rollback_to=None if process.base == model.head else process.base,
            metrics=None if process.pending is None else {"score": process.pending},
            line=self.line_of(process.base),
            blobs=[blob.name for blob in head.blobs],
        )
        assert (head.healthy, head.rollback_to) == (summary.healthy, summary.rollback_to)
        assert head.metrics.keys() == summary.metrics.keys()
        if not process.shares:
            known = {blob for saved in model.saved.values() for blob in saved.blobs}
            assert known.isdisjoint(blob.name for blob in head.blobs), "something is shared with what is damaged"
        elif process.base and model.saved[process.base].content.fixed == content.fixed and process.keep.independent == 1:
            assert frozenset(b.name for b in head.blobs) & model.saved[process.base].blobs, (
                "what did not change was written again"
            )
        blobs = frozenset(b.name for b in head.blobs)
        model.published(process.keep, summary, content, blobs, process.base, process.resumed_from, self.ends_of(number))
        assert set(head.line) == model.line
        self.check_enough_are_independent(process.keep)
        process.shares = True
        process.base, process.last_step, process.pending, process.new_best = number, content.step, None, False

    def ends_of(self, number: int) -> dict[str, str]:
        manifest = decode_manifest(self.store.read(layout.manifest(number)), "")
        return {
            manifest.blobs[leaf.blob].name: component.name
            for component in manifest.components
            for leaf in component.leaves
            if leaf.stop == manifest.blobs[leaf.blob].size_bytes
        }

    def check_enough_are_independent(self, keep: Keep) -> None:
        model = self.model
        healthy = [number for number in model.line if model.saved[number].summary.healthy]
        pairs = [(a, b) for a in healthy for b in healthy if a < b]
        if keep.independent == 2 and model.head in healthy and pairs:
            assert any(model.saved[a].blobs.isdisjoint(model.saved[b].blobs) for a, b in pairs)

    # --- going back -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.may_resume())
    @rule(which=st.sampled_from(["latest", "best", "never"]))
    def resume_by_word(self, which: str) -> None:
        self.resume(which)

    @precondition(lambda self: self.may_resume() and self.model.kept)
    @rule(data=st.data())
    def resume_a_number(self, data: st.DataObject) -> None:
        self.resume(data.draw(st.sampled_from(sorted(self.model.kept))))

    @precondition(lambda self: self.may_resume())
    @rule()
    def resume_what_is_not_there(self) -> None:
        with pytest.raises(NotFoundError):
            self.running().engine.resume(self.model.next + 100)

    def may_resume(self) -> bool:
        process = self.process
        return process is not None and not (self.model.stale and process.looked_at == self.model.head)

    def resume(self, which: Any) -> None:
        process, model = self.running(), self.model
        process.looked_at = model.head
        if which == "never" or (isinstance(which, str) and not model.kept):
            assert process.engine.resume(which) is None
            process.base, process.last_step, process.ready, process.shares = 0, 0, True, True
            self.begin_metrics(process)
            return
        if which == "best" and not process.keep.by:
            with pytest.raises(UsageError):
                process.engine.resume(which)
            return
        wanted = model.candidates(which, process.keep)
        if which == "best" and not wanted:
            with pytest.raises(NotFoundError):
                process.engine.resume(which)
            return
        chosen = model.choose(wanted)
        if chosen is None:
            with pytest.raises(CorruptError, match="none that may be loaded"):
                process.engine.resume(which)
            return
        (number, whole), before = chosen, process.content()
        saved = model.saved[number].content
        restored = process.engine.resume(which)
        assert restored is not None
        left = "replay" in model.hits(number)
        assert restored.exact == whole
        assert ("replay" in restored.components) == (not left)
        expected = Content(saved.step, saved.w, before.fixed if left else saved.fixed)
        assert (restored.generation, process.content()) == (number, expected)
        process.base = process.resumed_from = number
        process.shares = whole
        process.last_step, process.ready = restored.step, True
        process.pending, process.new_best = None, False
        self.begin_metrics(process)

    @precondition(lambda self: self.may_resume())
    @rule()
    def adopt(self) -> None:
        """Go on from the newest sound generation with the state as it is."""
        process, model = self.running(), self.model
        process.looked_at = model.head
        chosen = model.choose(model.candidates("latest", process.keep))
        if model.kept and chosen is None:
            with pytest.raises(CorruptError, match="none that may be loaded"):
                process.engine.adopt()
            return
        before = process.content()
        adopted = process.engine.adopt()
        assert process.content() == before
        assert (adopted.number if adopted else 0) == (chosen[0] if chosen else 0)
        process.shares = chosen is None or chosen[1]
        process.base, process.last_step, process.ready = (adopted.number, adopted.step, True) if adopted else (0, 0, True)
        process.resumed_from = process.base or process.resumed_from
        self.begin_metrics(process)

    def line_of(self, base: int) -> list[int]:
        """Return what a state that was loaded from ``base`` goes back to."""
        return sorted(self.model.kept & {base, *self.model.saved[base].line}) if base else []

    def begin_metrics(self, process: Process) -> None:
        live = {n: self.model.saved[n] for n in self.line_of(process.base)}
        scores = [s.summary.metrics["score"].number for s in live.values() if s.summary.healthy and s.summary.metrics]
        known = [score for score in scores if not math.isnan(score)]
        process.best = None
        if known and process.keep.by:
            process.best = max(known) if process.keep.mode == "max" else min(known)

    @precondition(lambda self: self.model.kept)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        """Roll back between two processes, as an operator does."""
        model, process = self.model, self.running()
        to = data.draw(st.sampled_from(sorted(model.kept)))
        if to == model.head or not model.is_sound(to):
            with pytest.raises(UsageError if to == model.head else CorruptError):
                oneshot.rollback(self.store, to)
            return
        with pytest.raises(ConflictError, match="already"):
            oneshot.rollback(self.store, to)
        process.engine.close()
        model.claimed()
        number = model.take_number()
        rolled = oneshot.rollback(self.store, to, take_over=True)  # a zombie may hold the guard
        assert (rolled.number, rolled.parent, rolled.rollback_to) == (number, model.head, to)
        old = model.saved[to]
        metrics = {name: metric.number for name, metric in old.summary.metrics.items()}
        healthy, line = old.summary.healthy, self.line_of(to)
        summary = generation(
            number, term=model.term, healthy=healthy, rollback_to=to, metrics=metrics, line=line, blobs=old.blobs
        )
        model.published(None, summary, old.content, old.blobs, to, 0, old.ends)
        self.start_with(process.keep, process.interval)

    # --- from outside ---------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.model.next))
        if number in self.model.kept:
            pin(self.store, number)
            self.model.pinned.add(number)
        else:
            with pytest.raises(NotFoundError):
                pin(self.store, number)

    @precondition(lambda self: self.model.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.pinned)))
        unpin(self.store, number)
        self.model.pinned.discard(number)

    @precondition(lambda self: self.model.kept)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.kept)))
        sound = sorted(self.model.saved[number].blobs - self.model.damaged)
        if not sound:
            return
        name = data.draw(st.sampled_from(sound))
        changed = bytearray(self.store.read(name))
        changed[-1] ^= 1
        self.store.replace(name, bytes(changed))
        self.model.damaged.add(name)
        self.model.stale = True

    @precondition(lambda self: any(zombie.ready for zombie in self.zombies))
    @rule(data=st.data())
    def a_zombie_saves(self, data: st.DataObject) -> None:
        """Let a process that was taken over wake up and save: it is told, and what it leaves counts for nothing."""
        ready = [zombie for zombie in self.zombies if zombie.ready]
        zombie = data.draw(st.sampled_from([zombie for zombie in ready if not zombie.fenced] or ready))
        before = set(self.names())
        zombie.state["policy"]["w"][:] = -1
        with pytest.raises(ConflictError) as caught:
            zombie.engine.save(zombie.state["counters"]["step"])
        assert caught.value.kind == "fenced"
        self.began = self.began or not zombie.fenced
        zombie.fenced = True
        for name in set(self.names()) - before:
            number = layout.generation_number(name)
            if number is not None:
                self.model.strays.add(number)
            elif name.startswith(layout.BLOBS):
                self.model.litter.add(name)
        if data.draw(st.booleans()):
            self.save()  # the rightful owner steps over what lies at its number

    # --- what must hold after each step ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return [entry.name for entry in self.store.list("")]

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        if self.process is None:
            return
        self.check_every_file_has_a_name_of_the_layout()
        self.check_which_manifests_lie_there()
        self.check_which_blobs_lie_there()
        self.check_terms()
        self.check_the_hints()
        self.check_what_readers_see()
        self.check_what_verifies()
        self.check_the_newest_loads()

    def check_every_file_has_a_name_of_the_layout(self) -> None:
        known = {layout.RUN, layout.LATEST, layout.PROGRESS, layout.BALLAST}
        asked = [layout.fence_term, layout.settlement_term, layout.generation_number, layout.pin_number, layout.mark_number]
        for name in self.names():
            is_event = name in {layout.events(term) for term in range(1, self.model.term + 1)}
            assert name in known or is_event or layout.blob_term(name) or any(ask(name) is not None for ask in asked), name
            assert not name.endswith((".tmp", ".part")), name

    def check_which_manifests_lie_there(self) -> None:
        found = {layout.generation_number(entry.name) for entry in self.store.list(layout.GENERATIONS)}
        assert found == self.model.files

    def check_which_blobs_lie_there(self) -> None:
        named = {blob for number in self.model.kept for blob in self.model.saved[number].blobs}
        assert {entry.name for entry in self.store.list(layout.BLOBS)} == named | self.model.litter

    def check_terms(self) -> None:
        names = [entry.name for entry in self.store.list(layout.TERMS)]
        terms = list(range(1, self.model.term + 1))
        assert sorted(filter(None, map(layout.fence_term, names))) == terms
        assert sorted(filter(None, map(layout.settlement_term, names))) == terms

    def check_the_hints(self) -> None:
        latest = read_latest(self.store)
        assert (latest.generation if latest else 0) == self.model.head
        assert (read_progress(self.store) is not None) == self.began
        assert layout.BALLAST in self.names()

    def check_what_readers_see(self) -> None:
        view = read(self.store)
        assert (view.head.number if view.head else 0) == self.model.head
        assert set(view.live) == self.model.kept
        assert view.void <= self.model.strays
        assert not view.undecided
        assert {number for number, held in view.pins.items() if held.state == "held"} == self.model.pinned

    def check_what_verifies(self) -> None:
        report = verify(self.store)
        for found in report.generations:
            if found.number in self.model.kept:
                assert found.state == ("valid" if self.model.is_sound(found.number) else "damaged")
            else:
                assert found.state in ("void", "retired")
        assert {problem.name for problem in report.problems} <= self.model.damaged

    def check_the_newest_loads(self) -> None:
        sound = [number for number in self.model.candidates("latest", KEEPS[0]) if self.model.is_sound(number)]
        if not sound:
            with pytest.raises(CorruptError if self.model.kept else NotFoundError):
                oneshot.load(self.store)
            return
        tree = oneshot.load(self.store)
        assert isinstance(tree, dict)
        loaded = Content(tree["counters"]["step"], float(tree["policy"]["w"][0]), int(tree["replay"]["rows"][0]))
        assert loaded == self.model.saved[sound[0]].content


@pytest.fixture
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "git_commit", lambda: "")


@pytest.mark.usefixtures("_no_git")
def test_the_engine_does_what_the_model_says() -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
