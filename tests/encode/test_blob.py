"""A blob is plain safetensors: what the public library reads from it is what was put in."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode import blob
from milepost.encode.blob import Item, layout, order, write_blob
from milepost.encode.digest import xxh3
from milepost.errors import InternalError
from milepost.state.tree import flatten


class Sink:
    """Keep what is written, and copy it: the caller may use its memory again."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: Any, /) -> None:
        self.pieces.append(bytes(data))

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def written(items: list[Item], views: list[bytes], **metadata: str) -> tuple[bytes, blob.BlobLayout, blob.WrittenBlob]:
    sink = Sink()
    plan = layout(items, metadata)
    result = write_blob(sink, plan, views)
    return sink.data, plan, result


def items_of(tree: dict[str, Any]) -> tuple[list[Item], list[bytes]]:
    items, views = [], []
    for leaf in flatten(tree, "x").leaves:
        memory = bytearray(leaf.size_bytes)
        leaf.copy_into(memoryview(memory))
        items.append(Item(leaf.path.removeprefix("x/"), leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes))
        views.append(bytes(memory))
    return items, views


elements = st.tuples(
    st.text(st.characters(codec=None), max_size=4) | st.sampled_from(["", "__metadata__", "a", "a%~2", "%", "\0", "\ud800"]),
    st.sampled_from(
        [("float32", 4), ("bool", 1), ("float64", 8), ("bfloat16", 2), ("complex128", 16), ("<U3", 12), (">f4", 4), ("|V0", 0)]
    ),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)


@given(st.lists(elements, max_size=8), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2), st.integers())
def test_any_blob_opens_with_the_public_library(parts: list[Any], metadata: dict[str, str], seed: int) -> None:
    items = [Item(name, dtype, shape, math.prod(shape) * size) for name, (dtype, size), shape in parts]
    views = [random.Random(f"{seed}{index}").randbytes(item.size_bytes) for index, item in enumerate(items)]
    data, plan, result = written(items, views, **metadata)
    assert result.size_bytes == plan.size_bytes == len(data)
    assert result.digest == xxh3(data)
    assert list(result.leaf_digests) == [xxh3(view) for view in views]
    assert [data[start:stop] for start, stop in plan.offsets] == views
    assert len(plan.header) % 4096 == 0
    assert plan.order == order(items)
    tensors = safetensors.deserialize(data)
    assert len(tensors) == len(items)
    assert sorted(bytes(info["data"]) for _, info in tensors) == sorted(views)


@given(st.lists(elements, max_size=8))
def test_every_leaf_is_aligned_to_its_elements(parts: list[Any]) -> None:
    items = [Item(name, dtype, shape, math.prod(shape) * size) for name, (dtype, size), shape in parts]
    plan = layout(items, {})
    for item, (start, _), (_, _, shape), (_, (_, size), _) in zip(items, plan.offsets, parts, parts, strict=True):
        if math.prod(shape) and size:
            assert start % (size & -size) == 0, item


def test_the_public_library_reads_the_very_values() -> None:
    rng = np.random.default_rng(0)
    tree: dict[str, Any] = {
        **{name: rng.integers(0, 2, (2, 3)).astype(name) for name in ("bool", "uint8", "int16", "uint32", "int64", "float16")},
        "float32": np.array([np.nan, -0.0, np.inf], "f4"),
        "zero-d": np.array(7.5),
        "empty": np.zeros((0, 3)),
        "turned": np.arange(6).reshape(2, 3).T,
    }
    data, _, _ = written(*items_of(tree), run="r")
    read = safetensors.numpy.load(data)
    assert set(read) == set(tree)
    for name, array in tree.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_torchs_dtypes_have_their_own_names_in_the_file() -> None:
    tree = {name: torch.zeros(2, dtype=getattr(torch, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "uint16")}
    data, _, _ = written(*items_of(tree))
    assert {name: info["dtype"] for name, info in safetensors.deserialize(data)} == {
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "uint16": "U16",
    }


@pytest.mark.parametrize("dtype", ["c8", "g", "M8[ns]", "U3", ">f4", [("a", "i4"), ("b", "f8")]])
def test_a_dtype_that_safetensors_lacks_is_stored_as_bytes_with_one_more_axis(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    data, _, _ = written(*items_of({"a": array}))
    read = safetensors.numpy.load(data)["a"]
    assert (read.dtype, read.shape) == (np.dtype("u1"), (2, 3, array.itemsize))
    assert read.tobytes() == array.tobytes()


def test_metadata_is_readable_by_the_public_library(tmp_path: Any) -> None:
    data, _, _ = written(*items_of({"a": np.zeros(2)}), run_id="r1", generation="7")
    (tmp_path / "b.safetensors").write_bytes(data)
    with safetensors.safe_open(tmp_path / "b.safetensors", "np") as opened:
        assert opened.metadata() == {"run_id": "r1", "generation": "7"}


def test_names_are_kept_where_they_can_be() -> None:
    names = ["policy/mlp.0.weight", "é", "[0]", "", "__metadata__", "a\0b", "a", "a", "a%~2", "50%"]
    data, _, _ = written([Item(name, "uint8", (1,), 1) for name in names], [b"x"] * len(names))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stored = [name for name in header if name != "__metadata__"]
    assert stored == ["policy/mlp.0.weight", "é", "[0]", "%", "%__metadata__", "a%00b", "a", "a%~2", "a%25~2", "50%25"]


def test_the_same_leaves_make_the_same_bytes() -> None:
    items, views = items_of({"a": np.arange(3), "b": np.zeros(2, "f4")})
    assert written(items, views)[0] == written(items, views)[0]


def test_pieces_are_large_but_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(blob, "_SMALL_BYTES", 100)
    monkeypatch.setattr(blob, "_GATHER_BYTES", 1000)
    monkeypatch.setattr(blob, "_COPIED_BYTES", 8192)
    views = [bytes([index % 256]) * 10 for index in range(500)] + [b"L" * 12_345]
    items = [Item(str(index), "uint8", (len(view),), len(view)) for index, view in enumerate(views)]
    sink = Sink()
    plan = layout(items, {})
    result = write_blob(sink, plan, views)
    sizes = [len(piece) for piece in sink.pieces]
    assert max(sizes) <= 8192
    assert len(sizes) <= len(sink.data) // 8192 + 3
    assert result.digest == xxh3(sink.data)
    assert result.leaf_digests[-1] == xxh3(views[-1])


def test_digests_that_are_known_are_taken_over() -> None:
    items, views = items_of({"a": np.arange(3), "b": np.arange(4)})
    result = write_blob(Sink(), layout(items, {}), views, [None, "known"])
    assert result.leaf_digests == (xxh3(views[0]), "known")


def test_a_leaf_of_another_size_than_planned_is_a_bug_of_ours() -> None:
    with pytest.raises(InternalError):
        write_blob(Sink(), layout([Item("a", "uint8", (2,), 2)], {}), [b"xyz"])
