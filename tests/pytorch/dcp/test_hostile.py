"""A sealed manifest that says of sharded tensors what nobody has written is refused, and harms nobody."""

from __future__ import annotations

import copy
import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.engine.reader import Source, build
from milepost.engine.reads import Reads
from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.pytorch.dcp import RunWriter, save
from milepost.pytorch.dcp.index import read_index
from milepost.pytorch.shards import assemble, node_of
from milepost.records import ComponentRecord, Manifest
from milepost.store.local import LocalStore
from tests.engine.training import local


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalStore, Manifest]:
    root = tmp_path_factory.mktemp("hostile") / "run"
    state = {"model": {"w": torch.ones(4, 3), "v": torch.ones(2)}, "lr": 0.1, "text": "x" * 2000}
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        save(state, RunWriter(str(root)), no_dist=True)
    store = local(Path(root))
    manifest = load_record(store, layout.manifest(1), Manifest)
    # As if two ranks had written `w`: its leaf stands for both halves of a tensor of eight rows.
    policy = manifest.component("policy")
    assert policy is not None
    pairs = dict(policy.tree[1])
    pairs["model.w"] = node_of((4, 3), [((0, 0), pairs["model.w"][1])])
    tree = ["dict", [[key, value] for key, value in pairs.items()]]
    components = [dataclasses.replace(one, tree=tree) if one.name == "policy" else one for one in manifest.components]
    return store, dataclasses.replace(manifest, components=tuple(components))


def look(store: LocalStore, manifest: Manifest) -> None:
    """Do with a manifest all that a load does with what it says."""
    record = manifest.component("dcp") or ComponentRecord("dcp", ["none"], ())
    with Reads(store, manifest, threads=1) as reads:
        read_index(manifest, Source(reads, record), store.url, trust_pickle=False)
    build(store, manifest, None)


def test_what_was_written_is_read(saved: tuple[LocalStore, Manifest]) -> None:
    look(*saved)


def places(node: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    found = [path]
    if isinstance(node, list):
        found += [each for index, child in enumerate(node) for each in places(child, (*path, index))]
    return found


ANYTHING = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        99,
        1 << 70,
        "",
        "w",
        "int",
        "array",
        [],
        ["none"],
        ["int", "-5"],
        ["int", "900000000000"],
        ["array", 7],
        ["list", []],
        ["dict", []],
        ["object", "torch.distributed.shards", ["dict", []]],
        ["object", "torch.distributed.own", ["none"]],
    ]
)


@settings(max_examples=300)
@given(st.data())
def test_a_tree_that_was_bent_anywhere_is_refused_or_is_another_whole_one(saved: tuple[LocalStore, Manifest], data: Any) -> None:
    store, manifest = saved
    number = data.draw(st.integers(0, len(manifest.components) - 1))
    component = manifest.components[number]
    tree = copy.deepcopy(component.tree)
    path = data.draw(st.sampled_from(places(tree)))
    value = data.draw(ANYTHING)
    node: Any = tree
    for index in path[:-1]:
        node = node[index]
    if path:
        node[path[-1]] = value
    else:
        tree = value if isinstance(value, list) else [value]
    bent = [*manifest.components]
    bent[number] = dataclasses.replace(component, tree=tree)
    with suppress(CorruptError, UsageError, MismatchError):
        look(store, dataclasses.replace(manifest, components=tuple(bent)))


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [((0,), torch.ones(3))],
        [((1,), torch.ones(4))],
        [((-1,), torch.ones(4))],
        [((0, 0), torch.ones(4))],
        [((0,), torch.ones(2)), ((2,), torch.ones(2, dtype=torch.float64))],
    ],
)
def test_chunks_that_are_not_exactly_their_tensor_are_refused(chunks: Any) -> None:
    with pytest.raises(CorruptError):
        assemble({"size": (4,), "chunks": chunks})
