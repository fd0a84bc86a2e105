"""Every batch is trained or dropped once, whatever is drawn, killed and resumed, and wherever the epochs end."""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.pytorch import TrainedFrontier
from milepost.pytorch.recover.sharing import same
from milepost.state.tree import flatten
from tests.pytorch.recover.loaders import PER_BATCH, Plain, distributed, numbers, torchdata

MAKERS: dict[str, Callable[[int], Any]] = {
    "plain": Plain,
    "random sampler": torchdata,
    "DistributedSampler": distributed,
    "StatefulDistributedSampler": lambda size: torchdata(size, sampler=StatefulDistributedSampler),
    "in order": lambda size: torchdata(size, sampler=None),
}


def order_of(make: Callable[[int], Any], size: int, batches: int) -> list[tuple[int, ...]]:
    """Return what a run that is left alone draws."""
    frontier = TrainedFrontier(make(size))
    drawn = []
    for expected in range(batches):
        ordinal, batch = frontier.draw()
        assert ordinal == expected
        frontier.trained(ordinal)
        drawn.append(numbers(batch))
    return drawn


class Runs(RuleBasedStateMachine):
    """Train from a frontier, save, be killed, resume; and know in a list what is trained of it all."""

    make: Callable[[int], Any]

    @initialize(size=st.integers(1, 9))
    def begin(self, size: int) -> None:
        self.size = size
        self.batches = -(-size // PER_BATCH)
        self.order = order_of(type(self).make, size, 6 * self.batches)
        self.history: dict[int, str] = {}
        self.held: dict[int, tuple[int, ...]] = {}
        self.loader: Any = type(self).make(size)
        self.frontier = TrainedFrontier(self.loader, ahead=64)
        self.saved: tuple[Any, dict[int, str]] = (self.frontier.state_dict(), {})

    def took(self, ordinal: int, batch: Any) -> None:
        assert ordinal not in self.history
        assert ordinal not in self.held
        if ordinal < len(self.order):
            assert numbers(batch) == self.order[ordinal]
        self.held[ordinal] = numbers(batch)

    @rule(count=st.integers(1, 7))
    def draw(self, count: int) -> None:
        if len(self.history) + len(self.held) < len(self.order):
            for _ in range(count):
                self.took(*self.frontier.draw())

    @precondition(lambda self: len(self.history) + len(self.held) < len(self.order))
    @rule(most=st.integers(1, 9))
    def iterate(self, most: int) -> None:
        given = 0
        for ordinal, batch in self.frontier:
            self.took(ordinal, batch)
            given += 1
            if given == most:
                break
        assert given > 0  # nobody's epoch is over before it has begun
        assert given <= self.batches

    @precondition(lambda self: self.held)
    @rule(data=st.data(), what=st.sampled_from(["trained", "trained", "stale", "failed"]))
    def resolve(self, data: st.DataObject, what: str) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=4, unique=True))
        if what == "trained":
            self.frontier.trained(*some)
        else:
            self.frontier.dropped(*some, reason=what)
        for ordinal in some:
            self.history[ordinal] = what
            del self.held[ordinal]

    @rule(ordinal=st.integers(-1, 60), with_good=st.booleans())
    def resolve_what_is_not_open(self, ordinal: int, with_good: bool) -> None:
        if ordinal in self.held:
            return
        before = self.frontier.state_dict()
        good = [*self.held][:1] if with_good else []
        with pytest.raises(UsageError) as caught:
            self.frontier.trained(*good, ordinal)
        assert caught.value.kind == ("resolved-twice" if ordinal in self.history else "not-drawn")
        after = self.frontier.state_dict()
        assert (after["ordinal"], after["beyond"]) == (before["ordinal"], before["beyond"])

    @rule()
    def save(self) -> None:
        state = self.frontier.state_dict()
        flatten(state, "data")
        self.saved = (copy.deepcopy(state), {**self.history})

    @rule(same_process=st.booleans())
    def kill_and_resume(self, same_process: bool) -> None:
        state, history = self.saved
        if not same_process or not state["begun"]:
            self.loader = type(self).make(self.size)
            self.frontier = TrainedFrontier(self.loader, ahead=64)
        self.frontier.load_state_dict(copy.deepcopy(state))
        self.history, self.held = {**history}, {}
        assert self.frontier.state_dict()["beyond"] == state["beyond"]

    @invariant()
    def the_frontier_is_the_first_that_is_not_resolved(self) -> None:
        if not hasattr(self, "frontier"):
            return
        first = next(ordinal for ordinal in range(10**6) if ordinal not in self.history)
        assert self.frontier.frontier == first
        assert self.frontier.open == tuple(sorted(self.held))
        counted = Counter(what for what in self.history.values() if what != "trained")
        assert self.frontier.dropped_by_reason == counted

    @invariant()
    def what_is_saved_is_no_larger_than_what_is_under_way(self) -> None:
        if hasattr(self, "frontier"):
            state = self.frontier.state_dict()
            assert len(state["beyond"]) <= (max([*self.history, *self.held], default=0) - state["ordinal"] + 2) // 2
            assert state["open"] == len(self.held)

    def teardown(self) -> None:
        """Train what is open, and to the end of the epoch: all of the data was trained as often, but for what was dropped."""
        if not hasattr(self, "frontier"):
            return
        for ordinal in sorted(self.held):
            self.frontier.trained(ordinal)
            self.history[ordinal] = "trained"
        # What a resume has still to draw again comes first: draw until every ordinal up to here has come by.
        last = max(self.history, default=-1)
        goal = -(-(last + 1) // self.batches) * self.batches
        while self.frontier.frontier < goal:
            ordinal, batch = self.frontier.draw()
            self.held[ordinal] = numbers(batch)
            self.frontier.trained(ordinal)
            assert ordinal not in self.history
            self.history[ordinal] = "trained"
        expected = Counter(one for batch in order_of(type(self).make, self.size, goal) for one in batch)
        assert set(expected.values()) <= {goal // self.batches}
        assert sorted(self.history)[:goal] == list(range(goal))


class FailingRuns(Runs):
    """The same, where samples cannot be read now and then."""

    @precondition(lambda self: len(self.history) + len(self.held) < len(self.order))
    @rule(often=st.integers(1, 2))
    def fail(self, often: int) -> None:
        self.loader.fails = often
        for _ in range(often):
            with pytest.raises(OSError, match="could not be read"):
                self.took(*self.frontier.draw())
        assert self.loader.fails == 0


def machine(name: str, base: type[Runs] = Runs) -> type[Runs]:
    return type(name.title().replace(" ", ""), (base,), {"make": staticmethod(MAKERS[name])})


TestPlain = machine("plain", FailingRuns).TestCase
TestPlain.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, report_multiple_bugs=False)
TestRandom = machine("random sampler").TestCase
TestRandom.settings = settings(max_examples=12, stateful_step_count=30, deadline=None, report_multiple_bugs=False)
TestDistributed = machine("DistributedSampler").TestCase
TestDistributed.settings = settings(max_examples=12, stateful_step_count=30, deadline=None, report_multiple_bugs=False)
TestStatefulDistributed = machine("StatefulDistributedSampler").TestCase
TestStatefulDistributed.settings = settings(max_examples=12, stateful_step_count=30, deadline=None, report_multiple_bugs=False)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("trained", [3, 4, 5, 7, 8, 9])
def test_a_run_that_ends_at_the_boundary_of_an_epoch_or_beside_it_goes_on(name: str, trained: int) -> None:
    make = MAKERS[name]
    alone = order_of(make, 8, 16)  # epochs of 4 batches
    frontier = TrainedFrontier(make(8))
    for _ in range(trained):
        frontier.trained(frontier.draw()[0])
    again = TrainedFrontier(make(8))
    again.load_state_dict(frontier.state_dict())
    lengths, drawn = [], []
    for _ in range(2):
        epoch = [numbers(batch) for _, batch in again]
        lengths.append(len(epoch))
        drawn += epoch
    assert lengths == [4 - trained % 4, 4]
    assert drawn == alone[trained : trained + len(drawn)]


@pytest.mark.parametrize(
    ("make", "more"),
    [(distributed, {}), (torchdata, {"persistent_workers": True}), (torchdata, {"snapshot_every_n_steps": 3})],
    ids=["epochs", "persistent", "few snapshots"],
)
def test_workers_that_prefetch_lose_nothing_over_two_resumes(make: Callable[..., Any], more: dict[str, Any]) -> None:
    alone = order_of(lambda size: make(size, 2, **more), 10, 14)
    frontier = TrainedFrontier(make(10, 2, **more))
    drawn = dict(frontier.draw() for _ in range(7))  # over the end of an epoch of 5
    assert [numbers(batch) for batch in drawn.values()] == alone[:7]
    frontier.trained(0, 1, 2, 5)
    frontier.dropped(4, reason="stale")
    for first, rest in ((3, [3, 6, 7, 8]), (6, [6, 7, 8, 9, 10, 11, 12, 13])):
        state = frontier.state_dict()
        flatten(state, "data")
        frontier = TrainedFrontier(make(10, 2, **more))
        frontier.load_state_dict(state)
        assert frontier.frontier == first
        drawn = dict(frontier.draw() for _ in rest)
        assert {ordinal: numbers(batch) for ordinal, batch in drawn.items()} == {ordinal: alone[ordinal] for ordinal in rest}
        frontier.trained(3) if first == 3 else frontier.trained(*rest)


class Streamed(IterableDataset[int]):
    """Give numbers one after another, and not say where it is."""

    def __iter__(self) -> Any:
        return iter(range(7))


class StreamedFrom(Streamed):
    """Give numbers one after another, each epoch from the first, and say where it is."""

    at = 0
    resumed = False

    def __iter__(self) -> Any:
        self.at, self.resumed = self.at if self.resumed else 0, False
        return self.rest()

    def rest(self) -> Any:
        while self.at < 7:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.resumed = state["at"], True


def sampled(kind: Any, *args: Any, **more: Any) -> StatefulDataLoader[Any]:
    """Return a loader over a sampler, and with ``shared`` its generator is the loader's, too."""
    shared = more.pop("shared", False)
    generator = torch.Generator().manual_seed(5)
    sampler = kind(*args, **more, generator=generator)
    return StatefulDataLoader(range(7), batch_size=2, sampler=sampler, generator=generator if shared else None)  # type: ignore[arg-type]


ORDERS: dict[str, Callable[[], Any]] = {
    "shuffled, no generator given": lambda: StatefulDataLoader(range(7), batch_size=2, shuffle=True),  # type: ignore[arg-type]
    "torch's sampler": lambda: sampled(RandomSampler, range(7)),
    "torch's sampler, shared": lambda: sampled(RandomSampler, range(7), shared=True),
    "torch's sampler, with replacement": lambda: sampled(RandomSampler, range(7), replacement=True, num_samples=70),
    "torch's sampler of a subset": lambda: sampled(SubsetRandomSampler, [1, 2, 4, 5, 6]),
    "torch's sampler by weights": lambda: sampled(WeightedRandomSampler, [1.0, 2.0, 3.0] * 2, 9),
    "torchdata's sampler": lambda: sampled(StatefulRandomSampler, range(7)),
    "torchdata's sampler, shared": lambda: sampled(StatefulRandomSampler, range(7), shared=True),
    "torchdata's sampler, with replacement": lambda: sampled(StatefulRandomSampler, range(7), replacement=True, num_samples=70),
    "torch's batch sampler, shared": lambda: batched(shared=True),
    "torch's batch sampler": lambda: batched(shared=False),
    "a stream": lambda: StatefulDataLoader(Streamed(), batch_size=2),
    "a stream that says where it is": lambda: StatefulDataLoader(StreamedFrom(), batch_size=2),
}


def batched(*, shared: bool) -> StatefulDataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    sampler = BatchSampler(RandomSampler(range(7), generator=generator), 2, drop_last=True)
    return StatefulDataLoader(range(7), batch_sampler=sampler, generator=generator if shared else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ORDERS)
def test_a_resumed_run_draws_what_a_run_left_alone_draws_whatever_its_order_comes_from(name: str) -> None:
    for trained in (0, 1, 3, 4, 5, 9, 38):
        frontier = TrainedFrontier(ORDERS[name]())
        for _ in range(trained):
            frontier.trained(frontier.draw()[0])
        held = [frontier.draw() for _ in range(2)]
        frontier.trained(held[1][0])
        again = TrainedFrontier(ORDERS[name]())
        again.load_state_dict(frontier.state_dict())
        alone = [(ordinal, numbers(batch)) for ordinal, batch in [held[0], *(frontier.draw() for _ in range(12))]]
        assert [(ordinal, numbers(batch)) for ordinal, batch in (again.draw() for _ in range(13))] == alone


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatefulDataLoader(range(7), sampler=RandomSampler(range(7))),  # type: ignore[arg-type]
        lambda: StatefulDataLoader(range(7), sampler=SubsetRandomSampler([1, 2])),  # type: ignore[arg-type]
        lambda: StatefulDataLoader(range(7), batch_sampler=BatchSampler(RandomSampler(range(7)), 2, drop_last=True)),  # type: ignore[arg-type]
        lambda: sampled(StatefulRandomSampler, range(7), replacement=True, shared=True),
        lambda: sampled(StatefulRandomSampler, range(7), num_samples=20, shared=True),
    ],
)
def test_an_order_that_nobody_can_draw_again_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="drawn again") as caught:
        TrainedFrontier(make())
    assert caught.value.kind == "not-repeatable"
    assert "generator" in caught.value.hint


def test_generators_that_are_loaded_after_the_position_are_those_of_a_run_left_alone() -> None:
    def run(frontier: TrainedFrontier, steps: int) -> list[Any]:
        found = []
        for _ in range(steps):
            ordinal, batch = frontier.draw()
            frontier.trained(ordinal)
            found.append((numbers(batch), torch.rand(()).item()))
        return found

    def make() -> TrainedFrontier:
        torch.manual_seed(1)
        return TrainedFrontier(StatefulDataLoader(list(range(8)), batch_size=2, shuffle=True))

    alone = run(make(), 12)
    for steps in (0, 1, 3, 4, 5, 8):
        frontier = make()
        before = run(frontier, steps)
        state, generator = frontier.state_dict(), torch.get_rng_state()
        again = make()
        again.load_state_dict(state)
        torch.set_rng_state(generator)
        assert before + run(again, 12 - steps) == alone


def test_an_epoch_that_was_begun_ahead_of_training_does_not_move_torchs_generator_a_second_time() -> None:
    # A loader without a generator of its own draws a seed from torch's when an epoch begins.
    def run(frontier: TrainedFrontier, waiting: list[int], steps: int) -> list[Any]:
        found = []
        for _ in range(steps):
            while len(waiting) < 3:
                waiting.append(frontier.draw()[0])
            frontier.trained(waiting.pop(0))
            found.append(torch.rand(()).item())
        return found

    def make() -> TrainedFrontier:
        torch.manual_seed(1)
        return TrainedFrontier(StatefulDataLoader(list(range(8)), batch_size=2, shuffle=True))

    alone = run(make(), [], 14)
    for steps in range(9):
        frontier = make()
        before = run(frontier, [], steps)
        state, generator = frontier.state_dict(), torch.get_rng_state()
        again = make()
        again.load_state_dict(state)
        torch.set_rng_state(generator)
        assert before + run(again, [], 14 - steps) == alone, steps


def test_a_state_is_taken_while_another_thread_waits_for_the_loader() -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(Plain):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                if self.place == 2:
                    reading.set()
                    assert go_on.wait(60)
                yield batch

    frontier = TrainedFrontier(Slow(8))
    ordinal, _ = frontier.draw()
    drawing = threading.Thread(target=frontier.draw)
    drawing.start()
    assert reading.wait(60)
    frontier.trained(ordinal)
    assert frontier.state_dict()["loader"] == {"place": 1}
    go_on.set()
    drawing.join(60)
    assert frontier.open == (1,)


def test_one_batch_that_nobody_resolves_is_named_before_memory_is_gone() -> None:
    frontier = TrainedFrontier(Plain(8), ahead=10)
    for _ in range(12):
        ordinal, _ = frontier.draw()
        if ordinal != 2:
            frontier.trained(ordinal)
    with pytest.raises(UsageError, match="open=`2`") as caught:
        frontier.draw()
    assert caught.value.kind == "too-far-ahead"
    frontier.dropped(2, reason="lost")
    assert frontier.draw()[0] == 12


def test_reasons_are_counted_and_their_number_is_bounded() -> None:
    frontier = TrainedFrontier(Plain(8))
    for number in range(100):
        frontier.dropped(frontier.draw()[0], reason=f"prompt {number}")
    assert len(frontier.dropped_by_reason) == 65
    assert frontier.dropped_by_reason["other reasons"] == 36
    with pytest.raises(UsageError):
        frontier.dropped(reason="")


def test_what_a_resume_brings_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    frontier = TrainedFrontier(Plain(8))
    for _ in range(7):
        frontier.draw()
    frontier.trained(0, 1, 2, 3, 5)
    frontier.dropped(6, reason="stale")
    again = TrainedFrontier(Plain(12))
    with caplog.at_level(logging.INFO, "milepost"):
        again.load_state_dict(frontier.state_dict())
    assert (
        "goes on at batch 4: epoch 0, after 4 of 6; 2 from there on are trained or dropped already; "
        "1 that were open are given out again; dropped so far: 1 stale"
    ) in caplog.text
    assert "an epoch had 4 batches and has 6 now" in caplog.text


@pytest.mark.parametrize("loader", [DataLoader([1, 2]), [1, 2], iter([1]), object(), Plain])  # type: ignore[arg-type]
def test_what_cannot_say_where_it_is_is_refused(loader: Any) -> None:
    with pytest.raises(UsageError, match="StatefulDataLoader") as caught:
        TrainedFrontier(loader)
    assert caught.value.kind == "not-stateful"


@pytest.mark.parametrize("ahead", [0, -1, True, 1.5, None])
def test_a_bound_that_is_none_is_refused(ahead: Any) -> None:
    with pytest.raises(UsageError):
        TrainedFrontier(Plain(2), ahead=ahead)


def test_a_loader_without_a_batch_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(UsageError, match="gives no batch"):
        TrainedFrontier(Plain(0)).draw()
    with pytest.raises(UsageError, match="gives no batch"):
        list(TrainedFrontier(torchdata(0, sampler=None)))


GOOD = TrainedFrontier(Plain(8)).state_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kind": "loader"},
        {"ordinal": -1},
        {"ordinal": True},
        {"epoch": 1.5},
        {"beyond": [[0, 2]]},
        {"beyond": [[-1, 2]], "begun": True},
        {"beyond": [[5, 6], [3, 4]], "begun": True},
        {"beyond": [[3, 3]], "begun": True},
        {"beyond": [[3, 5], [5, 7]], "begun": True},
        {"beyond": [[1, 10**30, 4]], "begun": True},
        {"beyond": None},
        {"dropped": {"stale": -1}},
        {"dropped": {1: 1}},
        {"batches_of_epoch": 3},
        {"begun": 1},
        {"shares": "two"},
    ],
    ids=str,
)
def test_what_is_no_position_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    frontier = TrainedFrontier(Plain(8))
    frontier.draw()
    before = frontier.state_dict()
    with pytest.raises(CorruptError) as caught:
        frontier.load_state_dict({**GOOD, **change})
    assert caught.value.kind == "bad-position"
    assert frontier.state_dict() == before
    assert frontier.draw()[0] == 1


@pytest.mark.parametrize("state", [None, {}, [], "x"])
def test_a_state_of_something_else_is_refused(state: Any) -> None:
    with pytest.raises(CorruptError):
        TrainedFrontier(Plain(8)).load_state_dict(state)


def test_a_position_of_other_workers_or_ranks_is_refused_with_the_reason() -> None:
    frontier = TrainedFrontier(torchdata(8))
    frontier.draw()
    with pytest.raises(MismatchError, match="data/workers: saved 0, here 2") as caught:
        TrainedFrontier(torchdata(8, 2)).load_state_dict(frontier.state_dict())
    assert caught.value.kind == "data-position"
    data = list(range(8))
    two = StatefulDataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with pytest.raises(MismatchError, match="ranks that share an epoch: saved None, here 2"):
        TrainedFrontier(two).load_state_dict(frontier.state_dict())


def test_what_a_loader_says_of_a_position_is_passed_on() -> None:
    frontier = TrainedFrontier(Plain(8))
    frontier.draw()
    state = frontier.state_dict()
    with pytest.raises(MismatchError, match="KeyError: 'place'"):
        TrainedFrontier(Plain(8)).load_state_dict({**state, "loader": {}})
    shuffled = TrainedFrontier(torchdata(8))
    shuffled.draw()
    with pytest.raises(MismatchError, match="it has 1 generators, and 0 were saved"):
        shuffled.load_state_dict({**state, "workers": 0})


def test_where_a_loader_began_is_asked_before_it_is_moved_back_there() -> None:
    begun, fresh = TrainedFrontier(Plain(8)), TrainedFrontier(Plain(8))
    at_start = fresh.state_dict()
    fresh.draw()
    begun.load_state_dict(fresh.state_dict())
    with pytest.raises(MismatchError, match="where it began, here not known"):
        begun.load_state_dict(at_start)
    fresh.load_state_dict(at_start)
    assert fresh.draw()[0] == 0


def moved(make: Callable[[int], Any], batches: int) -> Any:
    """Return a loader that was brought to a place of its own before anything else knows of it."""
    ahead, loader = make(9), make(9)
    for _, _ in zip(range(batches), ahead, strict=False):
        pass
    loader.load_state_dict(ahead.state_dict())
    return loader


def untold(size: int) -> Plain:
    """Return a plain loader that is told no epochs."""
    loader = Plain(size)
    loader.set_epoch = None  # type: ignore[assignment, method-assign]
    return loader


@pytest.mark.parametrize("make", [untold, torchdata], ids=["plain", "torchdata"])
@pytest.mark.parametrize("batches", [2, 5])
def test_a_loader_that_was_moved_before_keeps_its_place_when_it_is_saved_before_the_first_draw(
    make: Callable[[int], Any], batches: int
) -> None:
    live = TrainedFrontier(moved(make, batches))
    state = copy.deepcopy(live.state_dict())
    torch.manual_seed(3)
    expected = [numbers(live.draw()[1]) for _ in range(6)]
    after = torch.get_rng_state()
    again = TrainedFrontier(make(9))
    again.load_state_dict(state)
    assert same(again.state_dict(), state)  # saved once more before a draw
    torch.manual_seed(3)
    assert [numbers(again.draw()[1]) for _ in range(6)] == expected
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("make", [untold, torchdata], ids=["plain", "torchdata"])
@pytest.mark.parametrize("batches", [2, 5])
def test_a_loaders_own_position_is_where_ordinals_begin(make: Callable[[int], Any], batches: int) -> None:
    given = moved(make, batches)
    own = given.next_iter_state if make is torchdata else given.state_dict()
    expected = [numbers(batch) for batch in left_alone(moved(make, batches), 4)]
    frontier = TrainedFrontier(make(9))
    frontier.load_state_dict(copy.deepcopy(own))
    first, drawn = frontier.draw()
    frontier.trained(first)
    assert (first, [numbers(drawn), *(numbers(frontier.draw()[1]) for _ in range(3))]) == (0, expected)
    resumed = TrainedFrontier(make(9))
    resumed.load_state_dict(frontier.state_dict())
    assert [numbers(resumed.draw()[1]) for _ in range(3)] == expected[1:]


def left_alone(loader: Any, count: int) -> list[Any]:
    """Return what a loader gives over its epochs by itself."""
    given: list[Any] = []
    while len(given) < count:
        given += list(loader)
    return given[:count]


def test_a_loaders_own_position_is_not_taken_where_epochs_are_told() -> None:
    frontier = TrainedFrontier(Plain(8))
    with pytest.raises(MismatchError, match="data/epoch: saved not saved"):
        frontier.load_state_dict({"place": 3})
    assert frontier.draw()[0] == 0
