"""The arena: asked for once, and no save of a steady state asks for memory again. B4, A2"""

from __future__ import annotations

import gc
import mmap
import os
import statistics
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.encode.blob import Item, order
from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.state.rows import Rows
from milepost.store.memory import MemoryStore
from tests.engine.training import local

MAPS = Path("/proc/self/maps")


def anonymous_maps() -> int:
    return sum(" 00:00 0" in line for line in MAPS.read_text().splitlines())


def test_fifty_saves_of_a_changing_state_ask_for_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = mmap.mmap

    def counted(descriptor: int, size: int, **more: Any) -> mmap.mmap:
        asked.append(size)
        return real(descriptor, size, **more)

    monkeypatch.setattr(mmap, "mmap", counted)
    rows = Rows({"obs": np.zeros((400, 40))})
    state = {"policy": {f"w{at}": np.zeros(20_000, np.float32) for at in range(20)}, "replay": rows, "counters": {"n": 0}}
    with CheckpointEngine(local(tmp_path), state=state) as engine:
        engine.resume()
        assert engine._saving._arena.growths == 1, "it is there before the first save"
        peaks = []
        for step in range(1, 51):
            for array in state["policy"].values():  # type: ignore[attr-defined]
                array += 1
            added = 20 + 5 * (step % 5)
            for row in range(rows.count, rows.count + added):
                rows.arrays["obs"][row % 400] = step
            rows.advance(added)
            if step == 10:
                gc.collect()
                before = anonymous_maps()
                tracemalloc.start()
            engine.save(step)
            engine.wait()
            engine._background.settle()
            if step >= 10:
                gc.collect()
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
        tracemalloc.stop()
        assert engine._saving._arena.growths == 1
        assert len(asked) == 1
        assert statistics.median(peaks[20:]) < statistics.median(peaks[:20]) + 30_000
        assert max(peaks) < 1_600_000 + 12_000_000, "beside the arena nothing as large as the state: only buffers to write from"
        assert anonymous_maps() <= before + 3


def test_memory_is_touched_before_the_first_save_and_not_beyond_what_is_there() -> None:
    arena = Arena()
    arena.reserve(10 << 20)
    arena.warm(1 << 20)
    assert len(arena.memory) == 10 << 20
    arena.reserve(5 << 20)
    assert arena.growths == 1
    arena.reserve(11 << 20)
    assert arena.growths == 2
    arena.close()
    assert arena.size_bytes == 0


_DTYPES = st.sampled_from([np.uint8, np.float16, np.float32, np.float64, np.complex128, np.bool_, "<U3", "S5", "<M8[s]"])


@given(st.lists(st.tuples(_DTYPES, st.integers(0, 9), st.booleans()), max_size=20))
@settings(max_examples=60, deadline=None)
def test_leaves_lie_side_by_side_in_the_order_of_a_file(described: Any) -> None:
    arrays = [np.zeros((2, length) if two else length, dtype) for dtype, length, two in described]
    staged = capture({"policy": {"a": arrays[::2]}, "extra": {"b": arrays[1::2]}}, Arena())
    leaves = [leaf for component in staged.components for leaf in component.leaves]
    expected = order([Item(leaf.path, leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes) for leaf in leaves])
    end = 0
    for index in expected:
        assert leaves[index].start == end
        end += leaves[index].size_bytes


@pytest.fixture
def nothing_is_frozen() -> Iterator[None]:
    """Thaw what is frozen for all tests, as long as this one runs."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("nothing_is_frozen")
def test_a_capture_of_many_leaves_leaves_nothing_young_for_a_collection_to_walk_through() -> None:
    state = {"policy": {f"w{at}": np.zeros(1) for at in range(30_000)}}
    arena = Arena()
    gc.collect()
    staged = capture(state, arena)
    assert gc.get_count()[0] < 5_000
    assert len(staged.components[0].leaves) == 30_000


@pytest.mark.usefixtures("nothing_is_frozen")
def test_what_somebody_keeps_frozen_stays_frozen() -> None:
    state = {"policy": {f"w{at}": np.zeros(1) for at in range(30_000)}}
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    capture(state, Arena())
    assert gc.get_freeze_count() > frozen * 0.9


def test_a_state_without_bytes_is_saved() -> None:
    store = MemoryStore()
    with CheckpointEngine(store, state={"counters": {"n": 1}}) as engine:
        engine.save(1)
        engine.wait()
        assert engine._saving._arena.growths == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_that_drops_the_arena_unmaps_nothing_of_its_own() -> None:
    arena = Arena()
    arena.reserve(8 << 20)
    arena.warm(8 << 20)
    arena.memory[:5] = b"state"
    child = os.fork()
    if child == 0:
        found = b""
        try:
            others = [mmap.mmap(-1, 8 << 20) for _ in range(20)]  # one of them takes the place, where that is free
            found = bytes(arena.memory[:5])
            arena.close()
            for other in others:
                other[::4096] = b"x" * len(other[::4096])
        finally:
            os._exit(0 if found == bytes(5) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(arena.memory[:5]) == b"state"
