"""A stored tree that lies is an error of milepost's own, never a crash, a hang or a giant allocation."""

from __future__ import annotations

import copy
import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.envs.plain import Refiller
from milepost.errors import CorruptError, MilepostError, MismatchError, UsageError
from milepost.records import LeafRecord
from milepost.state.compare import compare
from milepost.state.dtypes import dtype_named
from milepost.state.inflate import check_tree, inflate, skeleton
from milepost.state.kinds import leaf_kind_named
from milepost.state.restore import restore
from milepost.state.rng import Rng, numpy_state
from milepost.state.scalars import DECODE
from milepost.state.tree import MOST_LEVELS
from tests.state.trees import Stored, trees

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
tags = st.sampled_from(
    [
        *DECODE,
        "array",
        "dict",
        "ordered-dict",
        "list",
        "tuple",
        "deque",
        "set",
        "frozenset",
        "object",
        "stateful",
        "rows",
        "items",
        "nonsense",
        "",
    ]
)


@st.composite
def damaged_nodes(draw: st.DrawFn) -> tuple[Any, Stored, Any]:
    """Return a tree, its stored form and its node with one place changed: whatever may stand there in JSON."""
    tree = draw(trees)
    stored = Stored(tree)
    node = copy.deepcopy(stored.node)
    places: list[tuple[list[Any], int]] = []
    pending = [node]
    while pending:
        here = pending.pop()
        places += [(here, index) for index in range(len(here))]
        pending += [child for child in here if isinstance(child, list)]
    place, index = draw(st.sampled_from(places))
    what = draw(st.sampled_from(["replace", "delete", "repeat", "tag", "text"]))
    if what == "delete":
        del place[index]
    elif what == "repeat":
        place.insert(index, copy.deepcopy(place[index]))
    elif what == "text" and isinstance(place[index], str) and place[index]:
        at = draw(st.integers(0, len(place[index]) - 1))
        place[index] = place[index][:at] + draw(st.characters(codec=None)) + place[index][at + 1 :]
    else:
        place[index] = draw(tags if what == "tag" else json_values)
    return tree, stored, node


@given(damaged_nodes())
def test_a_damaged_tree_is_another_tree_or_an_error_of_ours(case: tuple[Any, Stored, Any]) -> None:
    tree, stored, node = case
    for read in (
        lambda: inflate(node, stored.leaves, stored),
        lambda: skeleton(node, stored.leaves),
        lambda: compare(tree, node, stored.leaves, "x"),
        lambda: restore(tree, node, stored.leaves, stored, "x"),
    ):
        try:
            read()
        except MilepostError:
            stored.queued.clear()


@given(trees.map(Stored).filter(lambda stored: stored.leaves), st.data())
def test_a_leaf_record_that_lies_about_its_size_is_damage(stored: Stored, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(stored.leaves) - 1))
    shapes = st.lists(st.integers(-(2**70), 2**70), max_size=3).map(tuple)
    odd = st.sampled_from(["O", "object", "i4,O", "struct[1]", "struct[8,[]]", "U9999999999", "datetime64[0s]"])
    dtypes = st.text(max_size=6) | odd
    lies = shapes.map(lambda shape: {"shape": shape}) | dtypes.map(lambda dtype: {"dtype": dtype})
    leaves = list(stored.leaves)
    leaves[index] = replace(leaves[index], **data.draw(lies))
    try:
        inflate(stored.node, leaves, stored)
    except CorruptError:
        stored.queued.clear()
        return
    # What passes has told another shape or type of the very same size.
    told = leaves[index]
    kind = leaf_kind_named(told.kind)
    assert (kind.size_bytes(told.spec) if kind else math.prod(told.shape)) == told.size_bytes


@pytest.mark.parametrize("shape", [(2**61,), (2**40, 2**40), (0, 2**62), (-1,), (2,) * 65, (0, 2**61, 2**61)])
@pytest.mark.parametrize("kind", ["numpy", "torch", "bytes"])
def test_an_absurd_shape_takes_no_memory(shape: tuple[int, ...], kind: str) -> None:
    import torch  # noqa: F401 - brings the kind

    record = LeafRecord("x", kind, "uint8", shape, 0, 0, 8, "")
    with pytest.raises(CorruptError):
        inflate(["array", 0], [record], Stored(1))


def test_a_tree_nested_without_end_is_damage_and_not_a_recursion_error() -> None:
    node: list[Any] = ["none"]
    for _ in range(10_000):
        node = ["list", [node]]
    source = Stored(1)
    for read in (lambda: inflate(node, (), source), lambda: restore([[]], node, (), source, "x"), lambda: skeleton(node, ())):
        with pytest.raises(CorruptError):
            read()
    with pytest.raises(CorruptError):
        compare([], node, (), "x")


def test_the_deepest_tree_that_is_written_can_be_read() -> None:
    tree: Any = 1
    for _ in range(MOST_LEVELS):
        tree = {(1, (2, 3)): tree}
    stored = Stored(tree)
    assert inflate(stored.node, stored.leaves, stored) == tree
    with pytest.raises(UsageError) as caught:
        Stored([tree])
    assert caught.value.kind == "too-deep"


@pytest.mark.parametrize(
    "node",
    [
        ["int", "1_0"],
        ["int", "+1"],
        ["int", "01"],
        ["int", "-0"],
        ["int", " 1"],
        ["int", "0x1"],
        ["int", "٣"],
        ["float", "3FF0000000000000"],
        ["float", "3ff00000 0000000"],
        ["bytes", "YQ"],
        ["bytes", "YR=="],
        ["str", "\ud800"],
        ["str-raw", "YQ=="],
        ["bool", 1],
        ["array", True],
        ["array", -1],
        ["dict", [["a", ["none"]], ["a", ["none"]]]],
        ["set", [["int", "1"], ["float", "3ff0000000000000"]]],
        ["set", [["list", []]]],
        ["deque", 0, [["none"]]],
        ["deque", True, []],
        ["numpy", "object", ""],
        ["object", "numpy.Generator", ["dict", []]],
    ],
)
def test_a_second_spelling_is_damage(node: Any) -> None:
    with pytest.raises(CorruptError):
        inflate(json.loads(json.dumps(node)), (), Stored(1))


def test_a_kind_that_nobody_registered_names_what_to_import() -> None:
    record = LeafRecord("policy/w", "jaxlike.array", "float32", (1,), 0, 0, 4, "")
    with pytest.raises(UsageError, match="import jaxlike") as caught:
        inflate(["array", 0], [record], Stored(np.zeros(1)))
    assert caught.value.kind == "unknown-kind"
    assert caught.value.facts["path"] == "policy/w"


def generator_node(generator: np.random.Generator, change: Any) -> Any:
    """Return the node of a generator's state after a change."""
    state = numpy_state(generator)
    change(state)
    stored = Stored(state)
    return ["object", "numpy.Generator", stored.node], stored


POSITIONS = [
    (np.random.MT19937, lambda state: state["state"].update(pos=625)),
    (np.random.MT19937, lambda state: state["state"].update(pos=-1)),
    (np.random.MT19937, lambda state: state["state"].update(pos=10**6)),
    (np.random.MT19937, lambda state: state["state"].update(pos=1.5)),
    (np.random.Philox, lambda state: state.update(buffer_pos=-100)),
    (np.random.Philox, lambda state: state.update(buffer_pos=5)),
    (np.random.PCG64, lambda state: state["seeds"].update(pool_size=1 << 40)),
    (np.random.PCG64, lambda state: state["seeds"].update(entropy=1 << (1 << 20))),
    (np.random.PCG64, lambda state: state["seeds"].update(entropy=[1] * 100_000)),
    (np.random.PCG64, lambda state: state["seeds"].update(spawn_key=(1 << (1 << 20),))),
    (np.random.PCG64, lambda state: state["seeds"].update(n_children_spawned=1 << 30)),
    (np.random.PCG64, lambda state: state["seeds"].update(n_children_spawned=-1)),
    (np.random.PCG64, lambda state: state["seeds"].update(more=1)),
    (np.random.PCG64, lambda state: state.update(bit_generator="SystemRandom")),
]


@pytest.mark.parametrize(("algorithm", "change"), POSITIONS)
def test_a_generator_that_would_read_beyond_its_numbers_or_seed_for_hours_is_damage(algorithm: Any, change: Any) -> None:
    """NumPy takes any position and reads there at the next draw: memory of others, or none at all."""
    for live in (None, np.random.Generator(algorithm(1))):
        node, stored = generator_node(np.random.Generator(algorithm(1)), change)
        with pytest.raises(CorruptError):
            restore({"g": live}, ["dict", [["g", node]]], stored.leaves, stored, "x")


def test_a_legacy_generator_and_the_global_one_refuse_a_planted_position() -> None:
    state = dict(np.random.RandomState(1).get_state(legacy=False))
    state["state"] = {**state["state"], "pos": 10**6}
    stored = Stored(state)
    with pytest.raises(CorruptError):
        inflate(["object", "numpy.RandomState", stored.node], stored.leaves, stored)
    before = np.random.get_state()[2]
    whole = Rng().state_dict()
    whole["process"]["numpy"] = state  # type: ignore[index]
    with pytest.raises(CorruptError):
        Rng().load_state_dict(whole)
    assert np.random.get_state()[2] == before


def test_a_sound_generator_comes_back_wherever_its_position_is() -> None:
    for algorithm in (np.random.MT19937, np.random.Philox):
        for draws in (0, 1, 3, 4, 623, 624, 625):
            here = np.random.Generator(algorithm(7))
            here.bit_generator.random_raw(draws)
            stored = Stored(here)
            there: Any = inflate(stored.node, stored.leaves, stored)
            assert there.bit_generator.random_raw(9).tolist() == here.bit_generator.random_raw(9).tolist()


@pytest.mark.parametrize("what", ["dict", "set", "frozenset"])
def test_keys_chosen_to_have_one_hash_are_refused_before_they_take_the_square_of_their_number(what: str) -> None:
    modulus = sys.hash_info.modulus
    keys = [["int", hex(modulus * count)] for count in range(10_000, 30_000)]
    node = [what, [[key, ["none"]] for key in keys] if what == "dict" else keys]
    for read in (lambda: inflate(node, (), Stored(1)), lambda: check_tree(node, ())):
        with pytest.raises(CorruptError):
            read()
    few: Any = inflate([what, node[1][:64]], (), Stored(1))
    assert len(few) == 64


def test_what_is_larger_than_the_memory_is_told_so_and_is_no_damage() -> None:
    record = LeafRecord("replay/rows", "numpy", "uint8", (1 << 60,), 0, 0, 1 << 60, "")
    with pytest.raises(UsageError) as caught:
        inflate(["array", 0], [record], Stored(1))
    assert (caught.value.kind, caught.value.facts["path"]) == ("too-large", "replay/rows")
    with pytest.raises(UsageError) as raw:
        inflate(["array", 0], [replace(record, kind="bytes")], Stored(1))
    assert raw.value.kind == "too-large"


@pytest.mark.parametrize(
    "name",
    [
        "object",
        "O",
        "|O",
        "|V999999999999",
        "<U99999999999",
        "datetime64[999999999999D]",
        'struct[4,[["a","object",[],0]]]',
        'struct[4,[["a","O",[],0]]]',
        "struct[9999999999,[]]",
        'struct[4,[["a","int32",[4611686018427387904,4611686018427387904],0]]]',
        'struct[4,[["a","int32",[2147483647,2147483647],0]]]',
        "struct" + "[" * 50_000,
        "struct[4,[" + ",".join(f'["{i}","int8",[],0]' for i in range(20_000)) + "]]",
        "float32\x00",
    ],
)
def test_a_dtype_that_is_no_plain_bytes_or_takes_all_memory_is_refused(name: str) -> None:
    with pytest.raises(CorruptError):
        dtype_named(name)


def test_an_error_about_a_tree_can_always_be_told() -> None:
    for node in (10**5000, ["int", 10**5000], [[10**5000]]):
        with pytest.raises(CorruptError) as caught:
            inflate(node, (), Stored(1))  # type: ignore[arg-type]
        assert "damaged" in str(caught.value)


def test_no_saved_attribute_takes_the_place_of_a_method() -> None:
    class Owner:
        def step(self) -> int:
            return 1

        @property
        def spec(self) -> int:
            return 2

    for name in ("step", "spec", "__init__"):
        owner = Owner()
        with pytest.raises(MismatchError):
            Refiller().attributes(owner, {name: [1]}, "env")
        assert vars(owner) == {}
