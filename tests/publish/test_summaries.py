"""Summaries are read in a third of the time, and nothing passes that does not pass the slow way (rules 1, 2; issue 3's trust)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode.digest import seal
from milepost.errors import CorruptError, MilepostError
from milepost.publish import layout, summaries
from milepost.publish.manifest import encode, load_record
from milepost.publish.summaries import Summaries
from milepost.records import BlobRecord, ComponentRecord, LeafRecord, Manifest, Metric, Summary
from milepost.store.memory import MemoryStore

NAME = layout.manifest(1)


def manifest(keep: tuple[int, ...], line: tuple[int, ...], **other: Any) -> Manifest:
    number = other.pop("number", 1)
    blob = BlobRecord(layout.blob(number, 1, "0" * 16), 8, "0" * 32)
    leaf = LeafRecord("policy.w", "numpy", "float64", (1,), 0, 0, 8, "0" * 32)
    fixed = {"format_version": 1, "run_id": "run", "term": 1, "write_id": "w", "parent": 0, "rollback_to": None}
    rest = {"term_head": 0, "term_next": 1, "step": 5, "commit_timestamp": 9, "blobs": (blob,)}
    component = ComponentRecord("policy", ["dict", [["keep", ["leaf", 0]]]], (leaf,))
    return Manifest(**(fixed | rest | other), number=number, keep=keep, line=line, components=(component,))  # type: ignore[arg-type]


def outcome(read: Any, data: bytes) -> Any:
    store = MemoryStore()
    store.create(NAME, data)
    try:
        return read(store, NAME)
    except MilepostError as error:
        return type(error), error.kind, error.message, error.facts.get("says")


def slowly(store: MemoryStore, name: str) -> Summary:
    return load_record(store, name, Summary)


numbers = st.one_of(
    st.tuples(st.integers(1, 300), st.integers(0, 12)).map(lambda pair: tuple(range(pair[0], sum(pair)))),
    st.lists(st.integers(-3, 1 << 45), max_size=5).map(tuple),
)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_a_list_of_summaries_says_what_each_says_alone(lists: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    reading = Summaries()
    for keep, line in lists:
        data = encode(manifest(keep, line))
        assert outcome(reading.load, data) == outcome(slowly, data)


def pieces(body: bytes, spot: int, change: bytes) -> bytes:
    return body[:spot] + change + body[spot:]


CHANGES = (
    *(b",", b" ", b"]", b"[", b'"', b"0", b"-1", b"1e3", b",1", b"null", b'{"keep":[1]}'),
    *(b'"keep":[],', b'"keep":[1,2],', b'"line":[7],', b'"\\u006beep":[],', b'"unknown":1,', b'"unknown":{"keep":[3]},'),
)


@given(st.integers(0, 10_000), st.sampled_from(CHANGES), st.booleans())
def test_what_is_sealed_and_spelled_in_any_other_way_is_judged_as_ever(spot: int, change: bytes, warm: bool) -> None:
    whole = manifest((1, 2, 3), (1, 2, 3), reason='"keep":[9]')
    body = msgspec.json.encode(whole)
    reading = Summaries()
    if warm:
        outcome(reading.load, seal(body))
    data = seal(b"{" + pieces(body[1:-1], spot % len(body[1:-1]), change) + b"}")
    assert outcome(reading.load, data) == outcome(slowly, data)


@pytest.mark.parametrize(
    "member", [b'"keep":[]', b'"keep":[1,2,3]', b'"\\u006beep":[]', b'"line":[1]', b'"line":[]', b'"step":7']
)
def test_a_member_that_is_there_twice_is_refused_wherever_it_stands(member: bytes) -> None:
    body = msgspec.json.encode(manifest((1, 2), (1, 2)))
    for data in (seal(body[:-1] + b"," + member + b"}"), seal(b"{" + member + b"," + body[1:])):
        store = MemoryStore()
        store.create(NAME, data)
        with pytest.raises(CorruptError):
            Summaries().load(store, NAME)


@pytest.mark.parametrize("dropping", [0, 1, 3])
def test_numbers_that_go_on_where_the_manifest_before_it_ended_are_parsed_once(dropping, monkeypatch) -> None:
    store, parsed = MemoryStore(), 0
    expected = []
    for number in range(1, 60):
        kept = tuple(range(max(1, number - 20) if dropping else 1, number + 1))[:: 1 if dropping != 3 else 2]
        one = manifest(kept, kept, number=number, metrics={"return": Metric("0x1p+0", 3)})
        expected.append(Summary(**{field.name: getattr(one, field.name) for field in dataclasses.fields(Summary)}))
        store.create(layout.manifest(number), encode(one))
    real = msgspec.json.Decoder(tuple[int, ...])

    class Counting:
        def decode(self, text: bytes) -> tuple[int, ...]:
            nonlocal parsed
            found = real.decode(text)
            parsed += len(found)
            return found

    def never(*_: object) -> None:
        raise AssertionError("it was read the slow way")

    monkeypatch.setattr(summaries, "_NUMBERS", Counting())
    monkeypatch.setattr(summaries, "decode", never)
    reading = Summaries()
    assert [reading.load(store, layout.manifest(number)) for number in range(1, 60)] == expected
    assert dropping == 3 or parsed == 59


def test_a_flipped_bit_in_a_list_of_numbers_is_found(monkeypatch) -> None:
    data = bytearray(encode(manifest((1, 2, 3), (1, 2, 3))))
    reading = Summaries()
    assert isinstance(outcome(reading.load, bytes(data)), Summary)
    data[data.index(b"[1,2,3]") + 3] ^= 4
    assert outcome(reading.load, bytes(data))[1] == "damaged-record"
