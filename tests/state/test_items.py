"""B4, B8: a queue of items is saved as what was appended; its index leaves are trusted in nothing."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost import CorruptError, Items, MilepostError, Opaque, Rows, UsageError
from milepost.state.compare import compare
from milepost.state.inflate import inflate
from milepost.state.restore import restore
from milepost.state.tree import flatten
from tests.state.saves import Generation, Saves


def episode(number: int, size: int = 3) -> dict[str, Any]:
    return {"observation": np.full((size, 2), number), "reward": [float(number)] * size, "info": {"number": number}}


def queue(n: int = 0, maxlen: int | None = None) -> Items:
    items = Items(deque(maxlen=maxlen))
    for number in range(n):
        items.append(episode(number))
    return items


def numbers(items: Items) -> list[int]:
    return [item["info"]["number"] for item in items.items]


def test_the_second_save_takes_only_what_was_appended_and_evicts_what_is_gone() -> None:
    items, saves = queue(4, maxlen=5), Saves()
    saves.save(items)
    first = saves.staged_bytes
    items.append(episode(4))
    items.append(episode(5))
    generation = saves.save(items)
    assert generation.tree[:4] == ["items", 1, 6, [[0, 4], [4, 6]]]
    assert saves.staged_bytes - first < first
    live = Items(deque(maxlen=5))
    there = live.items
    restore({"q": live}, ["dict", [["q", generation.tree]]], generation.records, generation, "replay")
    assert live.items is there
    assert (live.start, live.count, numbers(live)) == (1, 6, [1, 2, 3, 4, 5])
    assert live.items[0]["observation"].tolist() == [[1, 1]] * 3


def test_a_touched_item_is_written_anew_and_another_one_is_not() -> None:
    items, saves = queue(6), Saves()
    saves.save(items)
    items.items[2]["info"]["more"] = True
    items.touch(2)
    assert saves.save(items).tree[3] == [[0, 6], [2, 3]]
    items.touch(99)  # not there yet
    items.popleft()
    items.touch(0)  # gone
    assert items.log.known is not None
    assert items.log.changed() == []


def test_whoever_changes_an_item_in_silence_is_found() -> None:
    items, saves = queue(6), Saves()
    saves.save(items)
    items.items[2]["observation"][0] = 77
    flat, generation = saves.stage(items)
    assert "items 0 to 6 of replay" in flat.logs[0].doubt
    built: Any = inflate(generation.tree, generation.records, generation)
    assert built.items[2]["observation"][0].tolist() == [77, 77]


@pytest.mark.parametrize("change", ["append", "pop", "extend", "replace"])
def test_a_queue_that_was_changed_past_its_items_is_saved_whole(change: str) -> None:
    items, saves = queue(4, maxlen=4), Saves()
    saves.save(items)
    {
        "append": lambda: items.items.append(episode(9)),
        "pop": lambda: items.items.pop(),
        "extend": lambda: items.items.extend([episode(7), episode(8)]),
        "replace": lambda: items.items.__setitem__(-1, episode(6)),
    }[change]()
    flat, generation = saves.stage(items)
    assert flat.logs[0].doubt
    built: Any = inflate(generation.tree, generation.records, generation)
    assert numbers(built) == numbers(items)
    saves.commit((flat, generation))
    assert not saves.stage(items)[0].logs[0].doubt


def test_whoever_takes_from_the_left_may_do_so_directly() -> None:
    items, saves = queue(4), Saves()
    saves.save(items)
    items.items.popleft()
    staged = saves.staged_bytes
    assert saves.save(items).tree[1:4] == [1, 4, [[0, 4]]]
    assert saves.staged_bytes == staged


def test_what_is_no_queue_and_what_cannot_be_an_item_is_refused() -> None:
    for bad in ((1, 2), np.zeros(2), {1}):
        with pytest.raises(UsageError):
            Items(bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Items([1, 2], count=1)
    for item in (object(), Rows({"a": np.zeros(2)}), queue(), Opaque(1)):
        with pytest.raises(UsageError) as caught:
            flatten(Items([0, item]), "replay")
        assert caught.value.facts["path"] == "replay[1]"


def test_a_queue_with_less_room_is_a_difference() -> None:
    generation = Saves().save({"q": queue(4)})
    found = compare({"q": queue(0, maxlen=3)}, generation.tree, generation.records, "x")
    assert [(each.path, each.kind) for each in found] == [("x/q", "shape")]
    assert compare({"q": queue(0, maxlen=4)}, generation.tree, generation.records, "x") == []


def test_an_opaque_item_needs_the_trust_that_any_pickle_needs() -> None:
    flat = flatten(Items([Opaque({1})]), "replay", allow_pickle=True)
    data = []
    for leaf in flat.leaves:
        memory = bytearray(leaf.size_bytes)
        leaf.copy_into(memoryview(memory))  # type: ignore[union-attr]
        data.append(bytes(memory))
    records = list(Saves().save(Items([1])).records)
    records = [
        replace(record, path=leaf.path, shape=(len(content),), stop=len(content))
        for record, leaf, content in zip(records, flat.leaves, data, strict=True)
    ]
    generation = Generation(flat.node, records, data)
    with pytest.raises(UsageError) as caught:
        inflate(flat.node, generation.records, generation)
    assert caught.value.kind == "pickle-not-trusted"
    built: Any = inflate(flat.node, generation.records, generation, trust_pickle=True)
    assert built.items[0].value == {1}


def with_index(text: bytes, data: bytes, n: int = 1) -> Generation:
    """Return a generation whose index says whatever ``text`` says."""
    like = Saves().save(Items([1])).records[0]
    records = [
        replace(like, path=f"q.{name}", shape=(len(raw),), stop=len(raw)) for name, raw in (("index", text), ("data", data))
    ]
    return Generation(["items", 0, n, [[0, n]], [[0, 1]]], records, [text, data])


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"[",
        b"{}",
        b"[1]",
        b'[[["int","1"],[],0],[["int","1"],[],0]]',
        b'[[["int","1"],[],1]]',
        b'[[["array",0],[["numpy","uint8",[4],0,4]],4]]',
        b'[[["array",0],[["numpy","uint8",[9],0,8]],8]]',
        b'[[["array",0],[["numpy","object",[1],0,8]],8]]',
        b'[[["array",0],[["numpy","uint8",[1152921504606846976],0,8]],8]]',
        b'[[["array",1],[["numpy","uint8",[8],0,8]],8]]',
        b'[[["array",0],[["numpy","uint8",[8],0,8],["numpy","uint8",[8],0,8]],8]]',
        b'[[["array",0],[["numpy","uint8",[8],-1,7]],8]]',
        b'[[["array",0],[["numpy","uint8",[8],0,9223372036854775808]],8]]',
        b'[[["rows",1,0,[],[["a","numpy","uint8",[],[]]]],[["numpy","uint8",[8],0,8]],8]]',
        b'[[["list",[["items",0,0,[],[]]]],[["numpy","uint8",[8],0,8]],8]]',
        b'[[["int","1"],[["numpy","uint8",[8],0,8]],true]]',
        b'[[["int",1],[["numpy","uint8",[8],0,8]],8]]',
        b"[[" + b'["list",[' * 2000 + b"]]" * 2000 + b",[],0]]",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_an_index_that_lies_is_damage(text: bytes) -> None:
    generation = with_index(text, b"12345678")
    with pytest.raises(CorruptError):
        inflate(generation.tree, generation.records, generation)


def test_a_live_queue_is_left_alone_by_an_index_that_lies() -> None:
    generation, live = with_index(b'[[["int","01"],[],0]]', b""), queue(2)
    with pytest.raises(CorruptError):
        restore(live, generation.tree, generation.records, generation, "q")
    assert numbers(live) == [0, 1]


@given(st.data())
def test_any_changed_index_is_another_queue_or_an_error_of_ours(data: st.DataObject) -> None:
    generation = Saves().save(queue(3))
    text = bytearray(generation.data[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"1", b"[", b"]", b'"', b",", b"null", b"9" * 9])
        )
    records = [replace(generation.records[0], shape=(len(text),), stop=len(text)), generation.records[1]]
    changed = Generation(generation.tree, records, [bytes(text), generation.data[1]])
    for read in (inflate, lambda *args: restore(queue(1), *args, "q")):
        try:
            read(changed.tree, changed.records, changed)
        except MilepostError:
            changed.settle()


def test_items_have_their_bytes_one_after_the_other_so_that_an_index_cannot_ask_for_them_twice() -> None:
    generation = Saves().save(queue(2))
    for node, leaves, size in msgspec.json.decode(generation.data[0]):
        assert node[0] == "dict"
        assert [leaf[3] for leaf in leaves] + [size] == [0, *(leaf[4] for leaf in leaves)]


def test_a_long_queue_is_read_from_its_nearer_end() -> None:
    items = Items(deque(range(1000)))
    assert items.between(990, 1000) == list(range(990, 1000))
    assert items.between(3, 7) == [3, 4, 5, 6]
    assert items.between(0, 1000) == list(range(1000))
    assert Items(list(range(10)), count=15).between(12, 15) == [7, 8, 9]


def test_a_copy_of_a_queue_has_items_and_notes_of_its_own() -> None:
    items, saves = queue(7, maxlen=3), Saves()
    saves.save(items)
    other = copy.deepcopy(items)
    assert (other.window, numbers(other), other.log.known) == ((4, 7), [4, 5, 6], None)
    assert other.items[0] is not items.items[0]
    other.append(episode(7))
    assert not saves.stage(other)[0].logs[0].doubt
