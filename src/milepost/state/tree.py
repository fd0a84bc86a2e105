"""Turn live values into a JSON tree and a list of leaves that know how to copy themselves.

A node is ``[tag, ...]``; docs/FORMAT.md lists the tags. Nothing a JSON parser could bend is left to it: integers are text,
floats their 16 hexadecimal digits. An array is ``["array", i]``, the i-th leaf of its component. Arrays over the very same
memory are one leaf. Only exact types are known: a subclass may carry state that nobody would see missing.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from milepost.errors import UsageError
from milepost.records import LeafSpec, Node
from milepost.state.items import Items, write_items
from milepost.state.kinds import LeafKind, leaf_kind, load_edges, object_kind
from milepost.state.leaves import Copy, KeptLeaf, Leaf, LiveLeaf
from milepost.state.log import Have, LogMark, Matches, Sink
from milepost.state.opaque import Opaque, pickled
from milepost.state.paths import step, type_name
from milepost.state.protocol import Stateful
from milepost.state.rows import Rows, write_rows
from milepost.state.scalars import encode, is_utf8, text_bytes

__all__ = ["Copy", "Flat", "KeptLeaf", "Leaf", "LiveLeaf", "flatten", "no_collection"]

MOST_LEVELS = 64
"""How deep a tree may be: five python frames and three JSON lists a level stay well within what stacks and parsers take."""
MOST_KEY_LEVELS = 8
"""How deep tuples may nest in a dict's key or a set's element."""
LARGE_BYTES = 1024
"""Text, bytes and integers above this are leaves: a manifest is read whole, and a parent's leaf can be shared."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Hold a flattened value: JSON-able ``node``, the leaves it refers to by index, and a mark for each log in it."""

    node: Node
    leaves: tuple[Leaf, ...]
    logs: tuple[LogMark, ...] = ()


def flatten(
    value: object, path: str, *, allow_pickle: bool = False, have: Have | None = None, matches: Matches | None = None
) -> Flat:
    """Return ``value`` as a node and its leaves; ``path`` is the component's name. No array is copied.

    `Stateful` objects are asked for their ``state_dict``. Of a log, `milepost.Rows` or `milepost.Items`, the pieces that are
    known, unchanged and in the base, as ``have(path, spec, digest)`` says, are `KeptLeaf`; without ``have`` all is live. With
    ``matches(data, digest)`` each log also compares one such piece with its live memory, another one each time; where they
    differ all of it is live, and its mark says so. Once a generation of this is committed, tell each of the ``logs``.

    Raises `UsageError` naming the path: kind ``unknown-object`` (a type nobody registered), ``cycle``, ``too-deep``,
    ``unsupported-dtype``, ``pickle-not-allowed``, ``bad-rows``.
    """
    load_edges()
    writer = _Writer(allow_pickle, Sink(have, matches))
    with no_collection():
        return Flat(writer.node(value, path, 0), tuple(writer.sink.leaves), tuple(writer.sink.marks))


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold the garbage collector off: nothing made here is garbage, yet it would walk the growing tree again and again.

    With 20,000 arrays that walk took six times as long as the work itself, while training stood still.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _grow_old()
            gc.enable()


_MANY = 20_000


def _grow_old() -> None:
    """Let what is young be old, unseen: the first collection would walk through all of it, for as long as it took to make.

    Frozen and thawed, objects join the oldest generation in one step. Not where somebody keeps others frozen.
    """
    if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def _copy_bytes(data: bytes | bytearray, into: memoryview) -> None:
    into[:] = data


class _Writer:
    """Gather the leaves of one component. Every leaf holds its array, so no address is ever seen twice by chance."""

    __slots__ = ("_open", "_shared", "allow_pickle", "sink")

    def __init__(self, allow_pickle: bool, sink: Sink) -> None:
        self.allow_pickle = allow_pickle
        self.sink = sink
        self._open: set[int] = set()
        self._shared: dict[tuple[str, Hashable], int] = {}

    def node(self, value: Any, path: str, depth: int) -> Node:
        kind = leaf_kind(type(value))
        if kind is not None:
            return self.array(kind, value, path)
        write = _WRITERS.get(type(value))
        if write is not None:
            return self.inside(write, value, path, depth)
        if _is_large(value):
            return self.large(value, path)
        node = encode(value)
        return node if node is not None else self.inside(_write_object, value, path, depth)

    def inside(self, write: _Write, value: Any, path: str, depth: int) -> Node:
        """Write what may contain others, unless it contains itself."""
        if id(value) in self._open:
            raise UsageError("a value contains itself", kind="cycle", hint="save the parts without the reference back", path=path)
        if depth >= MOST_LEVELS:
            raise UsageError("a tree is too deep to be saved", kind="too-deep", path=path, levels=MOST_LEVELS)
        self._open.add(id(value))
        node = write(self, value, path, depth + 1)
        self._open.remove(id(value))
        return node

    def array(self, kind: LeafKind, value: Any, path: str) -> Node:
        identity = kind.identity(value)
        key = (kind.name, identity)
        if identity is not None and key in self._shared:
            return ["array", self._shared[key]]
        spec = kind.describe(value, path)
        node = self._leaf(path, spec, kind.size_bytes(spec), value, kind.copy_into)
        if identity is not None:
            self._shared[key] = node[1]
        return node

    def large(self, value: Any, path: str) -> Node:
        """Write text, bytes or an integer as a leaf of its bytes."""
        name = type(value).__name__
        if type(value) is str:
            value = text_bytes(value)
        elif type(value) is int:
            value = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return self.raw(name, value, path)

    def raw(self, kind: str, data: bytes | bytearray, path: str) -> Node:
        return self._leaf(path, LeafSpec(kind, "uint8", (len(data),)), len(data), data, _copy_bytes)

    def _leaf(self, path: str, spec: LeafSpec, size_bytes: int, value: Any, copy: Copy) -> Node:
        return ["array", self.sink.add(LiveLeaf(path, spec, size_bytes, value, copy))]


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bytes or kind is bytearray:
        return len(value) > LARGE_BYTES
    return kind is int and value.bit_length() > 8 * LARGE_BYTES


_NEVER_KEYS = (bytearray, np.void)  # a structured scalar comes back writable, and so can't be hashed


def _key(key: Any, path: str, depth: int = 0) -> Node:
    """Return the node of what can be hashed: a dict's key, an element of a set. It never has leaves."""
    if depth < MOST_KEY_LEVELS and type(key) in (tuple, frozenset):
        return [type(key).__name__, [_key(part, path, depth + 1) for part in key]]
    node = encode(key) if type(key) not in _NEVER_KEYS else None
    return node if node is not None else _unknown(key, path)


def _pairs(writer: _Writer, value: dict[Any, Any], path: str, depth: int) -> list[list[Any]]:
    # Nearly all keys are text: it stands bare, every other key as a node.
    return [
        [
            key if type(key) is str and is_utf8(key) else _key(key, f"{path}{step(key)}"),
            writer.node(item, f"{path}{step(key)}", depth),
        ]
        for key, item in value.items()
    ]


def _elements(writer: _Writer, value: Iterable[Any], path: str, depth: int) -> list[Node]:
    return [writer.node(item, f"{path}[{index}]", depth) for index, item in enumerate(value)]


def _write_ordered(writer: _Writer, value: OrderedDict[Any, Any], path: str, depth: int) -> Node:
    # torch keeps the versions of a module's layout in an attribute of its state dict: load_state_dict converts by them.
    node: Node = ["ordered-dict", _pairs(writer, value, path, depth)]
    if vars(value):
        node.append(_pairs(writer, vars(value), path, depth))
    return node


def _write_rows(writer: _Writer, value: Rows, path: str, _: int) -> Node:
    return _again(writer.sink, value) or write_rows(value, path, writer.sink)


def _write_items(writer: _Writer, value: Items, path: str, _: int) -> Node:
    def encode(item: Any, at: str) -> tuple[Node, list[LiveLeaf]]:
        inner = _Writer(writer.allow_pickle, Sink())
        node = inner.node(item, at, 0)
        if inner.sink.marks:
            hint = "keep it beside the queue"
            raise UsageError("an item holds a log of its own", kind="unknown-object", hint=hint, path=at)
        return node, [leaf for leaf in inner.sink.leaves if isinstance(leaf, LiveLeaf)]

    return _again(writer.sink, value) or write_items(value, path, writer.sink, encode)


def _again(sink: Sink, value: Rows | Items) -> Node | None:
    """Return the node of a log that stands in this component already, as the very same leaves."""
    node = sink.written.get(id(value.log))
    return None if node is None else sink.mark(value.log, node, value.count)


def _write_object(writer: _Writer, value: Any, path: str, depth: int) -> Node:
    kind = object_kind(type(value))
    if kind is not None:
        return ["object", kind.name, writer.node(kind.get(value), path, depth)]
    if isinstance(value, Stateful) and not isinstance(value, type):
        return ["stateful", writer.node(value.state_dict(), path, depth)]
    return _unknown(value, path)


def _unknown(value: object, path: str) -> NoReturn:
    raise UsageError(
        "an object of an unknown type cannot be saved",
        kind="unknown-object",
        hint="give it state_dict and load_state_dict, register its type with milepost.state.kinds.register_object, "
        "or wrap it in milepost.Opaque and allow pickling",
        path=path,
        type=type_name(value),
    )


_Write = Callable[[_Writer, Any, str, int], Node]

_WRITERS: dict[type, _Write] = {
    dict: lambda writer, value, path, depth: ["dict", _pairs(writer, value, path, depth)],
    OrderedDict: _write_ordered,
    list: lambda writer, value, path, depth: ["list", _elements(writer, value, path, depth)],
    tuple: lambda writer, value, path, depth: ["tuple", _elements(writer, value, path, depth)],
    deque: lambda writer, value, path, depth: ["deque", value.maxlen, _elements(writer, value, path, depth)],
    set: lambda _, value, path, __: ["set", [_key(item, path) for item in value]],
    frozenset: lambda _, value, path, __: ["frozenset", [_key(item, path) for item in value]],
    Rows: _write_rows,
    Items: _write_items,
    Opaque: lambda writer, value, path, _: writer.raw("opaque", pickled(value, path, allow=writer.allow_pickle), path),
}
