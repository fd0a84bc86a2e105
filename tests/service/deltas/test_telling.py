from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.encode.digest import Buffer
from milepost.errors import CorruptError, MismatchError
from milepost.service.delta.settings import How
from milepost.service.deltas.parts import tensors_of
from milepost.service.deltas.telling import make, most_bytes, tell
from milepost.service.index import Chunks
from tests.service.deltas.versions import adam_like, part_of

ALWAYS = How(incremental_threshold=1.0)
DTYPES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "F64": 8, "C64": 8, "BOOL": 1, "I64": 8}


def made(told: list[Buffer] | None, base: Buffer, new: bytes) -> bytes:
    assert told is not None
    into = bytearray(len(new))
    make(b"".join(told), base, memoryview(into), Chunks.of(new, 100))
    return bytes(into)


@st.composite
def parts(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "header", "rest", "é"]), unique=True, max_size=5))
    tensors = {}
    for name in names:
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        elements = draw(st.integers(0, 40))
        size = elements * DTYPES[dtype]
        raw = draw(st.sampled_from([b"\0", b"\x80", b"\xff", b"\x7f\xc0\1"]))
        tensors[name] = (dtype, [elements], (raw * size)[:size])
    ties = {"twin": names[0]} if names and draw(st.booleans()) else None
    return part_of(tensors, ties=ties, gap=draw(st.integers(0, 3)))


@given(parts(), parts(), st.binary(max_size=50))
@settings(max_examples=150, deadline=None)
def test_any_part_comes_out_of_any_other_byte_for_byte(base: bytes, new: bytes, junk: bytes) -> None:
    for old in (base, junk, b""):
        before = bytes(old)
        told = tell(old, new, ALWAYS)
        if told is not None:
            assert made(told, old, new) == new
            assert sum(map(len, told)) < len(new)
        assert old == before
    assert tell(base, junk, ALWAYS) is None, "a few bytes are less than any delta"


@given(parts())
@settings(max_examples=100, deadline=None)
def test_what_a_part_is_made_of_is_the_part_again(part: bytes) -> None:
    seen: set[tuple[int, int]] = set()
    row = b""
    for tensor in tensors_of(part).values():
        place = np.frombuffer(tensor.data, np.uint8).ctypes.data if tensor.size_bytes else 0, tensor.size_bytes
        row += b"" if place in seen else bytes(tensor.data)
        seen.add(place)
    assert row == part


@pytest.mark.parametrize(
    "header",
    [
        {
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
        },
        {
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]},
        },
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 60]}},
        {"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
        {"a": 3},
        [],
    ],
)
def test_a_header_that_lies_makes_a_part_bytes_and_is_no_error(header: object) -> None:
    text = json.dumps(header).encode()
    part = len(text).to_bytes(8, "little") + text + bytes(4000)
    assert list(tensors_of(part)) == ["bytes"]
    assert made(tell(part, part[:-1] + b"\1", ALWAYS), part, part[:-1] + b"\1") == part[:-1] + b"\1"


def test_an_update_of_few_bfloat16_words_is_told_in_a_fiftieth() -> None:
    old, new = adam_like(1)
    told = tell(old, new, How())
    assert made(told, old, new) == new
    assert sum(map(len, told or [])) * 50 < len(new)


def test_on_a_link_on_which_the_whole_is_there_sooner_nothing_is_told() -> None:
    old, new = adam_like(2, words=1 << 16)
    assert tell(old, new, How(link_bytes_s=1e9)) is None
    assert most_bytes(len(new), How(link_bytes_s=1e9)) == 0


def test_where_all_changed_the_part_itself_is_less() -> None:
    rng = np.random.default_rng(3)
    old, new = (part_of({"w": ("I64", [1 << 15], rng.bytes(8 << 15))}) for _ in range(2))
    for how in (How(), ALWAYS, How(incremental_threshold=0.3)):
        assert tell(old, new, how) is None


def test_the_wrong_base_and_a_damaged_delta_are_refused() -> None:
    old, new = adam_like(4, words=1 << 16)
    told = b"".join(tell(old, new, How()) or [])
    chunks, into = Chunks.of(new), memoryview(bytearray(len(new)))
    with pytest.raises(MismatchError) as wrong:
        make(told, new, into, chunks)
    assert wrong.value.kind == "wrong-base"
    for at in (3, 20, len(told) // 2, len(told) - 1):
        hurt = bytearray(told)
        hurt[at] ^= 1
        with pytest.raises(CorruptError) as damaged:
            make(bytes(hurt), old, into, chunks)
        assert damaged.value.kind == "damaged-delta"
    with pytest.raises(CorruptError):
        make(told, old, into, Chunks.of(old))
    with pytest.raises(CorruptError):
        make(told, old, into[:-1], chunks)
    make(told, old, into, chunks)
    assert into == new


def test_a_delta_of_what_all_changed_takes_no_more_memory_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    from milepost.service.delta import encoding

    packed = 0
    pieces = encoding._pieces

    def counted(*args: Any) -> Any:
        nonlocal packed
        for piece, stored in pieces(*args):
            packed += sum(map(len, stored))
            yield piece, stored

    monkeypatch.setattr(encoding, "_pieces", counted)
    rng = np.random.default_rng(5)
    names = [str(number) for number in range(50)]
    old, new = (part_of({name: ("I64", [1000], rng.bytes(8000)) for name in names}) for _ in range(2))
    assert tell(old, new, How(link_bytes_s=250e6)) is None
    assert packed < len(new) * 0.55, "it went on after it was clear that the part is less"
