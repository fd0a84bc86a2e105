"""Whatever training, saves, failures, rollbacks and merges do: a generation holds what was there when it was staged."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from milepost import Items, Rows
from milepost.errors import CorruptError
from milepost.state.compare import compare
from milepost.state.inflate import check_tree, inflate
from milepost.state.merging import Limits
from milepost.state.restore import restore
from milepost.state.tree import Flat
from tests.state.saves import Generation, Saves
from tests.state.trees import bits

TINY = Limits(piece_bytes=96, small_bytes=24, floor_bytes=4, most_pieces=6, fan=3, crowd=4)


class OneReadThenDamage:
    """Be a source that gives one leaf and then finds damage."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._left = 1

    def read_into(self, index: int, into: memoryview) -> None:
        if not self._left:
            raise CorruptError("a leaf's bytes are not those that were saved", kind="damaged-leaf")
        self._left -= 1
        self._generation.read_into(index, into)

    def settle(self) -> None:
        self._generation.settle()


class Machine(RuleBasedStateMachine):
    """Drive one live log beside a plain model of it; half of the times without the self-check, which would hide faults."""

    live: Any

    def __init__(self) -> None:
        super().__init__()
        self.saves = Saves()
        self.salt = 0
        self.pending: tuple[tuple[Flat, Generation], Any] | None = None
        self.published: list[tuple[Generation, Any]] = []
        self.doubted = False

    def content(self, live: Any) -> Any:
        raise NotImplementedError

    def fresh(self) -> Any:
        raise NotImplementedError

    def next_salt(self) -> int:
        self.salt += 1
        return self.salt

    def stage(self) -> tuple[tuple[Flat, Generation], Any]:
        """Stage, and note what is there."""
        staged = self.saves.stage({"log": self.live})
        assert self.doubted or not staged[0].logs[0].doubt, "nothing was changed in silence"
        # Where there is nothing to share with, all is written in any case: the doubt waits for the save that can tell it.
        self.doubted = self.doubted and not staged[0].logs[0].doubt
        return staged, self.content(self.live)

    def publish(self, staged: tuple[Flat, Generation], content: Any) -> None:
        """Commit, and read what was published in every way there is."""
        generation = self.saves.commit(staged)
        self.published.append((generation, content))
        check_tree(generation.tree, generation.records)
        built: Any = inflate(generation.tree, generation.records, generation)
        assert self.content(built["log"]) == content
        other = {"log": self.fresh()}
        assert compare(other, generation.tree, generation.records, "replay") == []
        log = other["log"]
        assert restore(other, generation.tree, generation.records, generation, "replay") is other
        assert other["log"] is log
        assert self.content(log) == content

    @precondition(lambda self: self.pending is None)
    @rule()
    def stage_a_save(self) -> None:
        self.pending = self.stage()

    @precondition(lambda self: self.pending is not None)
    @rule(fails=st.booleans())
    def it_ends(self, fails: bool) -> None:
        assert self.pending is not None
        if not fails:
            self.publish(*self.pending)
        self.pending = None

    @precondition(lambda self: self.pending is None)
    @rule()
    def save_and_save_again(self) -> None:
        self.publish(*self.stage())
        before = self.saves.staged_bytes
        self.publish(*self.stage())
        assert self.saves.staged_bytes == before, "nothing had changed"

    @precondition(lambda self: self.published)
    @rule(which=st.integers(0, 99), shares=st.booleans())
    def go_back(self, which: int, shares: bool) -> None:
        """Load an older generation; a save that is in flight may still come to its end."""
        generation, content = self.published[which % len(self.published)]
        holder = {"log": self.live}
        restore(holder, generation.tree, generation.records, generation, "replay")
        assert holder["log"] is self.live
        assert self.content(self.live) == content
        self.pending = None if shares else self.pending
        self.saves.base = generation if shares else None

    @precondition(lambda self: self.published)
    @rule(which=st.integers(0, 99), again=st.integers(0, 99))
    def go_back_to_what_is_damaged_and_then_to_another(self, which: int, again: int) -> None:
        generation, _ = self.published[which % len(self.published)]
        try:
            restore({"log": self.live}, generation.tree, generation.records, OneReadThenDamage(generation), "replay")
        except CorruptError:
            generation.settle()
        self.go_back(again, shares=True)

    @rule()
    def the_base_is_distrusted(self) -> None:
        self.saves.base = None

    @rule()
    def doubt(self) -> None:
        self.live.doubt("for a test")
        self.doubted = True

    @invariant()
    def a_reader_of_the_newest_finds_what_was_staged(self) -> None:
        if self.published:
            generation, content = self.published[-1]
            built: Any = inflate(generation.tree, generation.records, generation)
            assert self.content(built["log"]) == content


class RingMachine(Machine):
    """A ring with arrays of every kind: plain, strided, a tensor, one with two names, one of no bytes."""

    @initialize(
        merges=st.booleans(),
        checks=st.booleans(),
        capacity=st.integers(1, 13),
        piece_bytes=st.sampled_from([1, 20, 60, 1000]),
        gap=st.sampled_from([0, 30]),
    )
    def begin(self, merges: bool, checks: bool, capacity: int, piece_bytes: int, gap: int) -> None:
        self.saves.checks, self.saves.limits = checks, TINY if merges else None
        self.capacity = capacity
        self.live = self.fresh()
        self.live.log.piece_bytes = piece_bytes
        self.live.log.gap_bytes = gap

    def fresh(self) -> Rows:
        plain = np.zeros((self.capacity, 2), np.int16)
        strided = np.zeros((self.capacity, 6), np.int32)[:, ::3]
        tensor = torch.zeros(self.capacity, dtype=torch.uint8)
        empty = np.zeros((self.capacity, 0))
        return Rows({"plain": plain, "twin": plain, "strided": strided, "tensor": tensor, "empty": empty})

    def content(self, live: Any) -> Any:
        order = [row % live.capacity for row in range(*live.window)]
        return live.count, {name: np.asarray(array)[order].tolist() for name, array in live.arrays.items()}

    def put(self, row: int) -> None:
        value, at = self.next_salt(), row % self.capacity
        self.live.arrays["plain"][at] = value % 30_000
        self.live.arrays["strided"][at] = value
        self.live.arrays["tensor"][at] = value % 251

    @rule(n=st.integers(0, 30))
    def add(self, n: int) -> None:
        for _ in range(n):
            self.put(self.live.count)
            self.live.advance()

    @rule(at=st.integers(0, 40), n=st.integers(0, 6))
    def change(self, at: int, n: int) -> None:
        start, stop = self.live.window
        for row in range(max(start, stop - at), min(stop, stop - at + n)):
            self.put(row)
        self.live.touch(max(0, stop - at), max(0, stop - at + n))

    @rule(count=st.integers(0, 40))
    def start_over(self, count: int) -> None:
        self.live.reset(count)
        for row in range(*self.live.window):
            self.put(row)


class QueueMachine(Machine):
    """A queue of trees."""

    @initialize(
        merges=st.booleans(),
        checks=st.booleans(),
        most=st.none() | st.integers(1, 9),
        piece_bytes=st.sampled_from([1, 100, 10_000]),
        as_list=st.booleans(),
    )
    def begin(self, merges: bool, checks: bool, most: int | None, piece_bytes: int, as_list: bool) -> None:
        self.saves.checks, self.saves.limits = checks, TINY if merges else None
        self.most, self.as_list = most, as_list
        self.live = self.fresh()
        self.live.log.piece_bytes = piece_bytes

    def fresh(self) -> Items:
        return Items([]) if self.as_list else Items(deque(maxlen=self.most))

    def content(self, live: Any) -> Any:
        return live.window, [bits(item) for item in live.items]

    def item(self, size: int) -> Any:
        salt = self.next_salt()
        array = np.full(size, salt, np.int16)
        return {"salt": salt, "array": array, "again": (array, "x" * 5), "long": b"b" * (1025 if size == 3 else 1)}

    @rule(sizes=st.lists(st.integers(0, 5), max_size=12))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            self.live.append(self.item(size))

    @precondition(lambda self: self.live.items)
    @rule()
    def popleft(self) -> None:
        self.live.popleft()

    @precondition(lambda self: self.live.items)
    @rule(at=st.integers(0, 99))
    def change(self, at: int) -> None:
        place = at % len(self.live.items)
        self.live.items[place]["array"] = np.full(2, self.next_salt())
        self.live.touch(self.live.start + place)

    @precondition(lambda self: self.live.items and self.pending is None)
    @rule()
    def append_past_it(self) -> None:
        self.live.items.append(self.item(1))
        self.doubted = True
        self.publish(*self.stage())


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
