"""Any tree, how it is stored and read back without a store, and what "the same to the last bit" means."""

from __future__ import annotations

import json
import math
import random
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from milepost import Items, Rows
from milepost.records import LeafRecord, Node
from milepost.state.tree import flatten


class Stored:
    """A value after its way through bytes and JSON; also the `LeafSource` for reading it."""

    def __init__(self, value: object, *, allow_pickle: bool = False) -> None:
        flat = flatten(value, "x", allow_pickle=allow_pickle)
        self.node: Node = json.loads(json.dumps(flat.node).encode())
        self.data: list[bytes] = []
        records = []
        for leaf in flat.leaves:
            memory = bytearray(b"\xa5" * leaf.size_bytes)
            leaf.copy_into(memoryview(memory))
            self.data.append(bytes(memory))
            spec = leaf.spec
            records.append(LeafRecord(leaf.path, spec.kind, spec.dtype, spec.shape, 0, 0, leaf.size_bytes, ""))
        self.leaves = tuple(records)
        self.queued: list[tuple[int, memoryview]] = []

    def read_into(self, index: int, into: memoryview) -> None:
        assert into.nbytes == len(self.data[index])
        assert into.nbytes > 0
        self.queued.append((index, into))

    def settle(self) -> None:
        """Fill what was asked for only now, last first: nobody may count on more than the contract says."""
        while self.queued:
            index, into = self.queued.pop()
            into[:] = self.data[index]


def bits(value: Any) -> Any:
    """Return something equal for two values exactly if they are the same to the last bit, types and order included."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, np.str_ | np.bytes_):
        return kind, value.tolist() if kind is np.str_ else bytes(value)
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, str(value.dtype), np.shape(value), value.tobytes()
    if kind in (dict, OrderedDict):
        return kind, [(bits(key), bits(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [bits(item) for item in value]
    if kind is deque:
        return kind, value.maxlen, [bits(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(bits(item)) for item in value)
    if kind is Rows:
        order = [row % value.capacity for row in range(*value.window)]
        return kind, value.capacity, value.count, [(name, bits(array[order])) for name, array in value.arrays.items()]
    if kind is Items:
        return kind, value.window, [bits(item) for item in value.items]
    if kind is np.random.Generator:
        return kind, bits(value.bit_generator.state)
    if kind is np.random.RandomState:
        return kind, bits(value.get_state(legacy=False))
    if kind is random.Random:
        return kind, value.getstate()
    return kind, value


def _with_nan_payloads(value: float, payload: int) -> float:
    return struct.unpack("d", struct.pack("Q", 0x7FF8 << 48 | payload))[0] if math.isnan(value) else value


def has_keys_that_equal_nothing(tree: Any) -> bool:
    """Return whether a dict's key is no number or no time: it equals no key, not even the one it was saved from."""
    if isinstance(tree, dict):
        return any(_equals_nothing(key) for key in tree) or has_keys_that_equal_nothing(list(tree.values()))
    return type(tree) in (list, tuple, deque) and any(has_keys_that_equal_nothing(item) for item in tree)


def _equals_nothing(key: Any) -> bool:
    if type(key) in (tuple, frozenset):
        return any(_equals_nothing(part) for part in key)
    return bool(key != key)


def _has_titles(dtype: Any) -> bool:
    """Return whether a structured dtype gives a field a second name; such a dtype is refused."""
    base = dtype.base
    return base.names is not None and any(len(field) > 2 or _has_titles(field[0]) for field in base.fields.values())


texts = st.text(st.characters(codec=None, categories=None, exclude_categories=()), max_size=20)
floats = st.builds(_with_nan_payloads, st.floats(), st.integers(0, 2**51 - 1))
integers = st.one_of(st.integers(), st.integers(-(2**9000), 2**9000), st.sampled_from([2**60, -(2**60), 2**63]))
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(endianness="?"),
    hnp.byte_string_dtypes(),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.array_dtypes(max_size=3).filter(lambda dtype: not _has_titles(dtype)),
    st.sampled_from([np.dtype(np.longdouble), np.dtype(np.clongdouble), np.dtype("V7")]),
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Raw bytes seen as any dtype, any layout: values hypothesis would never think of are among them."""
    dtype = draw(dtypes)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    count = math.prod(shape)
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    if dtype.hasobject or dtype.kind == "U" or "U" in str(dtype):
        raw = bytes(count * dtype.itemsize)  # most bytes are no text
    array = np.ndarray(shape, dtype, bytearray(raw)) if count * dtype.itemsize else np.ndarray(shape, dtype)
    layout: Callable[[Any], Any] = draw(st.sampled_from([lambda a: a, lambda a: a.T, lambda a: a[..., ::-1] if a.ndim else a]))
    return layout(array)


numpy_scalars = st.one_of(
    arrays().filter(lambda a: a.ndim == 0 and a.dtype.kind not in "US").map(lambda a: a[()]),
    texts.map(np.str_),
    st.binary(max_size=9).map(np.bytes_),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    floats,
    st.builds(complex, floats, floats),
    texts,
    st.sampled_from(["é" * 600, "\ud800" + "x" * 2000]),
    st.binary(max_size=40),
    st.sampled_from([b"b" * 1025, b"b" * 1024]),
)
keys = st.recursive(
    st.one_of(plain, numpy_scalars.filter(lambda s: not isinstance(s, np.void))),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)


def _generator(bits_of: str, seed: int, drawn: int, spawned: int) -> np.random.Generator:
    made = np.random.Generator(getattr(np.random, bits_of)(seed))
    made.integers(0, 9, size=drawn, dtype=np.uint8)
    made.spawn(spawned)
    return made


def _random_state(seed: int) -> np.random.RandomState:
    made = np.random.RandomState(seed)
    made.standard_normal(3)
    return made


@st.composite
def rings(draw: st.DrawFn) -> Rows:
    """Arrays of any dtype and layout, any number of rows written, cut into pieces of any size."""
    capacity = draw(st.integers(1, 4))
    found = draw(st.lists(arrays().filter(lambda a: a.flags.writeable), min_size=1, max_size=3))
    named = {f"{index}é": np.stack([array] * capacity) for index, array in enumerate(found)}
    made = Rows(named, count=draw(st.integers(0, 9)))
    made.log.piece_bytes = draw(st.sampled_from([1, 64, 1 << 20]))
    return made


seeds = st.integers(0, 2**32 - 1)
generators = st.one_of(
    st.builds(
        _generator,
        st.sampled_from(["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]),
        seeds,
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    st.builds(_random_state, seeds),
    st.builds(random.Random, seeds),
)
leaves = st.one_of(plain, numpy_scalars, arrays(), generators, st.binary(max_size=1100).map(bytearray), rings())


def _deque(items: list[Any], spare: int | None) -> deque[Any] | Items:
    if spare is not None and spare < 0 and not _has_logs(items):
        return Items(deque(items), count=len(items) - 1 - spare)
    spare = None if spare is None else max(0, spare)
    return deque(items, None if spare is None else len(items) + spare)


def _has_logs(tree: Any) -> bool:
    if isinstance(tree, dict):
        return _has_logs(list(tree.values()))
    return type(tree) in (Rows, Items) or (type(tree) in (list, tuple, deque) and any(map(_has_logs, tree)))


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=4)
    return st.one_of(
        several,
        several.map(tuple),
        st.builds(_deque, several, st.none() | st.integers(-3, 3)),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4).map(OrderedDict),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    )


trees = st.recursive(leaves, _containers, max_leaves=12)
