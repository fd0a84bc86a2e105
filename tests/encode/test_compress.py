"""What shrinks is found by a few samples, remembered for a while, and packed in bounded memory by threads that stand back."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from milepost.encode import compress
from milepost.encode.compress import Compressor, Decisions, buffers, split, worth
from milepost.encode.frames import MOST_RAW_BYTES
from milepost.encode.plan import NewLeaf
from milepost.records import LeafSpec
from milepost.state.tree import flatten

RNG = np.random.default_rng(0)
SIZE = 1 << 20


def game(rows: int = 150) -> np.ndarray:
    """Return pictures as of an old game: mostly one colour, with a few things in them."""
    frames = np.full((rows, 84, 84), 87, np.uint8)
    frames[:, 30:50, 20:60] = RNG.integers(0, 4, (rows, 20, 40)) * 50
    return frames


def spec_of(array: Any) -> LeafSpec:
    return flatten({"a": array}, "x").leaves[0].spec


def bytes_of(array: Any) -> memoryview:
    leaf = flatten({"a": array}, "x").leaves[0]
    memory = memoryview(bytearray(leaf.size_bytes))
    leaf.copy_into(memory)
    return memory


SHRINKS = {
    "pictures": game(),
    "actions": RNG.integers(0, 6, SIZE // 8),
    "flags": RNG.random(SIZE) < 0.01,
    "bytes of few kinds": RNG.integers(0, 4, SIZE).astype(np.uint8),
    "times": np.arange(SIZE // 8).astype("M8[s]"),
    "text": np.array(["left", "right"] * 10_000),
    "zeros of float64": np.zeros(SIZE // 8),
    "zeros of float32": np.zeros(SIZE // 4, np.float32),
    "zeros of bfloat16": torch.zeros(SIZE // 2, dtype=torch.bfloat16),
    "one value of float32": np.full(SIZE // 4, 0.1, np.float32),
    "a mask of floats": np.repeat(RNG.integers(0, 2, SIZE // 400), 100).astype(np.float32),
    "a buffer that is full to a tenth": np.concatenate(
        [RNG.integers(0, 256, SIZE // 10).astype(np.uint8), np.zeros(SIZE, np.uint8)]
    ),
}
STAYS = {
    "weights": RNG.standard_normal(SIZE // 4).astype(np.float32),
    "moments": (RNG.standard_normal(SIZE // 4) ** 2 * 1e-6).astype(np.float32),
    "weights of float64": RNG.standard_normal(SIZE // 8),
    "weights of bfloat16": torch.randn(SIZE // 2, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)),
    "big-endian floats": RNG.standard_normal(SIZE // 4).astype(">f4"),
    "complex": (RNG.standard_normal(SIZE // 8) + 1j * RNG.standard_normal(SIZE // 8)).astype(np.complex64),
    "noise": RNG.integers(0, 256, SIZE).astype(np.uint8),
    "hashes": RNG.integers(0, 1 << 63, SIZE // 8),
    "zeros, but few": np.zeros(500),
    "nothing": np.zeros((0, 3)),
}


@pytest.mark.parametrize("name", SHRINKS)
def test_what_shrinks_is_worth_it(name: str) -> None:
    assert worth(spec_of(SHRINKS[name]), bytes_of(SHRINKS[name]))


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_shrink_is_left_alone(name: str) -> None:
    assert not worth(spec_of(STAYS[name]), bytes_of(STAYS[name]))


@pytest.mark.parametrize(
    ("dtype", "places"), [("uint8", 4), ("int64", 4), ("<U5", 4), ("<M8[s]", 4), ("float32", 1), (">f4", 1), ("bfloat16", 1)]
)
def test_a_sample_is_small_however_large_the_leaf_is(dtype: str, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    taken = compress._sample

    def watched(view: memoryview, wanted: int) -> bytes:
        sample = taken(view, wanted)
        seen.append(len(sample))
        return sample

    monkeypatch.setattr(compress, "_sample", watched)
    worth(LeafSpec("numpy", dtype, (64 << 20,)), memoryview(bytearray(64 << 20)))
    assert seen == [places * (16 << 10)]


def test_samples_are_spread_over_the_leaf() -> None:
    data = memoryview(np.repeat(np.arange(100, dtype=np.uint8), 16 << 10)).cast("B")
    places = sorted(set(compress._sample(data, 4)))
    assert places[0] < 25 < places[-1] - 50


def leaf(path: str, array: Any, component: str = "replay") -> NewLeaf:
    return NewLeaf(component, path, spec_of(array), len(bytes_of(array)), "digest")


def test_leaves_are_split_into_what_is_packed_and_what_is_not() -> None:
    arrays = [STAYS["weights"], game(), STAYS["zeros, but few"], SHRINKS["actions"], STAYS["moments"]]
    leaves = [leaf(f"x/{index}", array) for index, array in enumerate(arrays)]
    assert split(leaves, [bytes_of(array) for array in arrays], Decisions()) == ((0, 2, 4), (1, 3))


def test_what_is_less_than_a_file_of_its_own_costs_stays_with_the_rest() -> None:
    small = np.zeros(100_000, np.uint8)
    assert split([leaf("x/a", small)], [bytes_of(small)], Decisions()) == ((0,), ())
    assert split([], [], Decisions()) == ((), ())
    rows = np.zeros(10_000, np.uint8)
    both = [leaf("x/a", small), leaf("replay.observations[0:10]", rows)]
    assert split(both, [bytes_of(small), bytes_of(rows)], Decisions()) == ((0,), (1,)), "rows have a file of their own anyway"


@pytest.mark.parametrize(
    ("pictures", "floats", "due"),
    [
        (100_000, 1000, ((), (0, 1))),
        (1000, 100_000, ((0, 1), ())),
        (100_000, 50_000, ((1,), (0,))),
        (1000, 0, ((0, 1), ())),
        (9000, 0, ((), (0, 1))),
    ],
)
def test_a_trifle_goes_with_the_rest_of_its_log_so_that_it_is_one_file(
    pictures: int, floats: int, due: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    arrays = [np.zeros(pictures, np.uint8), RNG.standard_normal(floats // 4).astype(np.float32)]
    leaves = [leaf("replay.observations[0:10]", arrays[0]), leaf("replay.rewards[0:10]", arrays[1])]
    assert split(leaves, [bytes_of(array) for array in arrays], Decisions()) == due


def test_logs_are_decided_about_each_by_itself() -> None:
    noise, zeros = STAYS["noise"], np.zeros(SIZE, np.uint8)
    leaves = [
        leaf("replay.a[0:9]", noise),
        leaf("replay.b[0:9]", zeros[:100_000]),
        leaf("expert.a[0:9]", zeros),
        leaf("x/a", zeros),
    ]
    data = [bytes_of(noise), bytes_of(zeros[:100_000]), bytes_of(zeros), bytes_of(zeros)]
    assert split(leaves, data, Decisions()) == ((0, 1), (2, 3))


class Watched:
    """Count what is sampled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        asked = compress.worth

        def counted(spec: LeafSpec, data: Any) -> bool:
            self.count += 1
            return asked(spec, data)

        monkeypatch.setattr(compress, "worth", counted)


def test_a_decision_stands_for_sixteen_saves_and_all_pieces_of_a_log_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, decisions, pictures = Watched(monkeypatch), Decisions(), game()
    for save in range(33):
        leaves = [leaf(f"replay.observations[{start}:{start + 150}]", pictures) for start in (save * 300, save * 300 + 150)]
        assert split(leaves, [bytes_of(pictures)] * 2, decisions) == ((), (0, 1))
        assert watched.count == save // 16 + 1


def test_zeros_that_become_noise_are_not_packed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, decisions = Watched(monkeypatch), Decisions()
    moments = np.zeros(SIZE, np.float32)
    one = leaf("optimizer/exp_avg", moments, "optimizer")
    assert split([one], [bytes_of(moments)], decisions) == ((), (0,))
    noise = bytes_of(RNG.standard_normal(SIZE).astype(np.float32))
    for _ in range(10):
        assert split([one], [noise], decisions) == ((0,), ())
    assert watched.count == 2, "what is noise is not looked at again at once"


def test_what_would_have_to_be_read_first_is_judged_by_what_is_known_of_it() -> None:
    def never() -> bytes:
        raise AssertionError("it was read")

    decisions, pictures, weights = Decisions(), game(), RNG.standard_normal(SIZE).astype(np.float32)
    leaves = [leaf("replay.observations[0:150]", pictures), leaf("policy/w", weights, "policy")]
    assert split(leaves, [never, never], decisions) == ((1,), (0,)), "by its dtype"
    assert split(leaves, [bytes_of(STAYS["noise"])[: pictures.nbytes], never], decisions)[0] == (0, 1)
    assert split(leaves, [never, never], decisions) == ((0, 1), ()), "by what was found before"


def packed(
    leaves: list[memoryview], threads: int = 1, header: bytes = b"h" * 4096
) -> tuple[list[tuple[int, int]], list[bytes], int]:
    pool, frames, stored = buffers(), list[tuple[int, int]](), list[bytes]()
    with Compressor(threads=threads).packing(pool, frames) as cut:
        for piece in cut(header, iter(leaves)):
            stored.append(bytes(piece))
            pool.give(piece)
    return frames, stored, len(pool)


def unpacked(stored: list[bytes]) -> list[bytes]:
    import zstandard

    return [zstandard.ZstdDecompressor().decompress(one) for one in stored]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_frames_are_bounded_in_order_and_say_what_they_give(threads: int) -> None:
    sizes = [100, 5000, 3 << 20, (9 << 20) + 5, 1, 4 << 20, (4 << 20) - 1, 2]
    leaves = [memoryview(random.Random(size).randbytes(size // 2) + bytes(size - size // 2)) for size in sizes]
    frames, stored, _ = packed(leaves, threads)
    raws = unpacked(stored)
    assert b"".join(raws) == b"h" * 4096 + b"".join(leaves)
    assert [(len(raw), len(one)) for raw, one in zip(raws, stored, strict=True)] == frames
    assert frames[0][0] == 4096, "the header is a frame of its own"
    assert max(raw for raw, _ in frames) == MOST_RAW_BYTES
    assert len(frames) <= 1 + math.ceil(sum(sizes) / MOST_RAW_BYTES) + len(sizes)


def test_a_large_leaf_begins_a_frame_and_small_ones_are_not_cut() -> None:
    large, small = memoryview(bytes(9 << 20)), memoryview(bytes(3 << 20))
    frames, _, _ = packed([small, large, small, small])
    assert [raw >> 20 for raw, _ in frames] == [0, 3, 4, 4, 4, 3]
    starts = np.cumsum([0, *(raw for raw, _ in frames)]).tolist()
    assert 4096 + (3 << 20) in starts


def test_a_header_of_any_length_fits_into_frames() -> None:
    header = random.Random(0).randbytes(9 << 20)
    frames, stored, _ = packed([memoryview(b"x" * 10)], header=header)
    assert [raw for raw, _ in frames] == [4 << 20, 4 << 20, 1 << 20, 10]
    assert b"".join(unpacked(stored))[:-10] == header


@pytest.mark.parametrize("threads", [1, 3])
def test_buffers_are_used_again_and_as_many_as_threads_and_a_few_more_suffice(threads: int) -> None:
    scattered = [memoryview(bytearray(1 << 20)) for _ in range(200)]
    _, _, buffers_made = packed(scattered, threads)
    assert buffers_made <= 2 * (threads + 2), "each frame raw, since its leaves lie apart, and stored"
    whole = memoryview(bytearray(200 << 20))
    _, _, buffers_made = packed([whole], threads)
    assert buffers_made <= threads + 2


def test_leaves_that_lie_side_by_side_are_packed_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memoryview(bytearray(8 << 20))
    seen: list[bool] = []
    pack = Compressor._pack

    def watched(self: Compressor, raw: memoryview, into: memoryview) -> memoryview:
        start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        seen.append(0 <= np.frombuffer(raw, np.uint8).__array_interface__["data"][0] - start < len(memory))
        return pack(self, raw, into)

    monkeypatch.setattr(Compressor, "_pack", watched)
    packed([memory[start : start + 8192] for start in range(0, len(memory), 8192)])
    assert seen == [False, True, True]


def test_no_more_of_the_state_is_read_ahead_than_there_are_threads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def leaves() -> Iterator[memoryview]:
        nonlocal taken
        for _ in range(30):
            taken += 1
            yield memoryview(bytearray(MOST_RAW_BYTES))

    pool, frames = buffers(), list[tuple[int, int]]()
    with Compressor(threads=2).packing(pool, frames) as cut:
        pieces = cut(b"h" * 4096, leaves())
        pool.give(next(pieces))
        assert taken <= 3
    assert not [thread for thread in threading.enumerate() if thread.name == "milepost-pack"]


def test_an_error_in_a_helper_thread_comes_out_once_and_no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Compressor, raw: memoryview, into: memoryview) -> memoryview:
        raise MemoryError("no tables")

    monkeypatch.setattr(Compressor, "_pack", failing)
    with pytest.raises(MemoryError, match="no tables"):
        packed([memoryview(bytearray(20 << 20))])
    assert not [thread for thread in threading.enumerate() if thread.name == "milepost-pack"]
