"""The chunks of a tensor are all of it, each element once: whatever else DCP says is refused before a byte is read. A11"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import CorruptError
from milepost.pytorch.importing import dcp_spans
from milepost.pytorch.importing.dcp_spans import Chunk, DcpSource, SavedTensor, Span, check

Box = tuple[tuple[int, ...], tuple[int, ...]]


def checked(size: tuple[int, ...], boxes: list[Box], place: Path) -> None:
    """Check a tensor of bytes in these chunks, each with bytes of its own."""
    chunks, start = [], 0
    for offsets, sizes in boxes:
        length = math.prod(sizes)
        chunks.append(Chunk(offsets, sizes, Span("file", start, length)))
        start += length
    check(DcpSource(place, {"w": SavedTensor(torch.uint8, size, tuple(chunks))}, {}, {}, 1))


@st.composite
def split(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """Return a size, and boxes that are all of it."""
    size = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes: list[Box] = [((0,) * len(size), size)]
    for _ in range(draw(st.integers(0, 5))):
        index = draw(st.integers(0, len(boxes) - 1))
        (offsets, sizes), axis = boxes[index], draw(st.integers(0, len(size) - 1))
        if sizes[axis] < 2:
            continue
        at = draw(st.integers(1, sizes[axis] - 1))
        boxes[index] = (offsets, _with(sizes, axis, at))
        boxes.append((_with(offsets, axis, offsets[axis] + at), _with(sizes, axis, sizes[axis] - at)))
    return size, draw(st.permutations(boxes))


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("spans")
    (found / "file").write_bytes(bytes(20_000))
    return found


@given(tensor=split())
def test_however_a_tensor_is_split_its_chunks_are_all_of_it(place: Path, tensor: tuple[tuple[int, ...], list[Box]]) -> None:
    checked(*tensor, place)


@given(tensor=split(), data=st.data())
def test_a_chunk_that_lies_anywhere_else_is_refused(
    place: Path, tensor: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    size, boxes = tensor
    index = data.draw(st.integers(0, len(boxes) - 1))
    offsets, sizes = boxes[index]
    axis = data.draw(st.integers(0, len(size) - 1))
    by = data.draw(st.integers(-3, 3).filter(bool))
    boxes[index] = (_with(offsets, axis, offsets[axis] + by), sizes)
    with pytest.raises(CorruptError):
        checked(size, boxes, place)


@given(tensor=split(), data=st.data())
def test_a_chunk_that_is_missing_or_there_twice_is_refused(
    place: Path, tensor: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    size, boxes = tensor
    one = data.draw(st.sampled_from(boxes))
    other = data.draw(st.sampled_from(boxes))
    left = [*boxes]
    left.remove(one)
    for some in (left, [*boxes, one], [*left, other] if other != one else left):
        with pytest.raises(CorruptError):
            checked(size, some, place)


def test_two_chunks_of_the_right_volume_that_overlap_and_leave_a_hole_are_refused(place: Path) -> None:
    with pytest.raises(CorruptError, match="overlap"):
        checked((4, 4), [((0, 0), (2, 4)), ((1, 0), (2, 4))], place)
    checked((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 4)), ((4, 0), (0, 4))], place)  # a rank that has no rows of it


@pytest.mark.parametrize("axis", [0, 1])
def test_many_chunks_are_checked_in_time_that_grows_with_them(place: Path, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met = 0
    original = dcp_spans._meet

    def counted(a: Chunk, b: Chunk) -> bool:
        nonlocal met
        met += 1
        return original(a, b)

    monkeypatch.setattr(dcp_spans, "_meet", counted)
    count, other = 1_000, 20
    size = _with((other, other), axis, count)
    checked(size, [(_with((0, 0), axis, index), _with(size, axis, 1)) for index in range(count)], place)
    assert met < 10 * count
