"""A stored tree that lies is an error of milepost's own, never a crash, a hang or a giant allocation."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import CorruptError, MilepostError, UsageError
from milepost.records import LeafRecord
from milepost.state.compare import compare
from milepost.state.inflate import inflate, skeleton
from milepost.state.restore import restore
from milepost.state.scalars import DECODE
from milepost.state.tree import MOST_LEVELS
from tests.state.trees import Stored, trees

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
tags = st.sampled_from(
    [*DECODE, "array", "dict", "ordered-dict", "list", "tuple", "deque", "set", "frozenset", "object", "stateful", "nonsense", ""]
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
