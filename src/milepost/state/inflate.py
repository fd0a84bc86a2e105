"""Build values anew from a stored tree. Trusts nothing: whatever the tree says, damage is a `CorruptError`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from milepost.errors import CorruptError, MilepostError
from milepost.records import LeafRecord, LeafSpec, Node
from milepost.state.filling import LeafSource, fill_rows, new_rows, stored_items
from milepost.state.items import Items
from milepost.state.kinds import LeafKind, ObjectKind, load_edges, object_kind_named
from milepost.state.log import TAGS
from milepost.state.opaque import unpickled
from milepost.state.paths import step
from milepost.state.scalars import DECODE, bytes_text, damaged, is_utf8
from milepost.state.stored import (
    StoredItems,
    StoredRows,
    check_log,
    check_raw,
    kind_of,
    leaves_of,
    read_log,
    record_at,
    too_large,
    unknown_kind,
)
from milepost.state.tree import MOST_KEY_LEVELS, MOST_LEVELS

_MOST_LEVELS = MOST_LEVELS + 1  # a scalar may stand at the bottom of the deepest container
_HASHABLE = frozenset(DECODE) - {"bytearray"}
_MOST_WITH_ONE_HASH = 64


def inflate(node: Node, leaves: Sequence[LeafRecord], source: LeafSource, *, trust_pickle: bool = False) -> Any:
    """Return the saved value, built anew with fresh writable arrays; everything has been read on return.

    The state of a `Stateful` object comes back as its plain state. A leaf's size is checked against its shape before
    memory is taken; that ``[start, stop)`` lies within the blob is the caller's to check.
    Raises `CorruptError` for a tree that `flatten` never writes, `UsageError` for a kind nobody registered (kind
    ``unknown-kind``) and for an `Opaque` without ``trust_pickle`` (kind ``pickle-not-trusted``).
    """
    load_edges()
    value = Inflater(leaves, source, trust_pickle=trust_pickle).value(node)
    source.settle()
    return value


def skeleton(node: Node, leaves: Sequence[LeafRecord]) -> Any:
    """Return the saved value with a `milepost.records.LeafSpec` in the place of each leaf; reads nothing.

    Registered and `Stateful` objects appear as their plain state.
    """
    return _Skeleton(leaves).value(node)


def check_tree(node: Node, leaves: Sequence[LeafRecord]) -> None:
    """Raise what `inflate` would raise for this tree, as far as that shows before a leaf is read; changes nothing."""
    load_edges()
    _Checker(leaves).value(node)


class TreeReader(ABC):
    """Walk a stored tree and build containers and scalars; what leaves and objects become is the subclass's."""

    def __init__(self, leaves: Sequence[LeafRecord]) -> None:
        self.leaves = leaves
        self._logs: dict[int, tuple[Node, Any]] = {}
        """By the index of a leaf: the log that is read from it, and what stands for that."""

    @abstractmethod
    def leaf(self, node: Node, path: str) -> Any:
        """Return what stands for an ``array`` node."""

    @abstractmethod
    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:
        """Return what stands for a log's node, which says ``stored``."""

    @abstractmethod
    def object(self, kind: str, state: Any) -> Any:
        """Return what stands for a registered object with this state."""

    def value(self, node: Any, path: str = "", depth: int = 0) -> Any:
        """Return what ``node`` stands for."""
        if type(node) is not list or not node or type(node[0]) is not str or depth > _MOST_LEVELS:
            damaged(node)
        tag = node[0]
        if tag == "array":
            return self.leaf(node, path)
        if tag in TAGS:
            return self.any_log(node, path)
        read = _CONTAINERS.get(tag)
        if read is not None:
            return read(self, node, path, depth + 1)
        decode = DECODE.get(tag)
        return decode(node) if decode is not None else damaged(node)

    def any_log(self, node: Node, path: str) -> Any:
        """Return what stands for a log's node. No two logs are read from one leaf, but one log may stand at two places."""
        stored = read_log(node, self.leaves)
        mine = leaves_of(stored)
        earlier = [self._logs[index] for index in mine if index in self._logs]
        if earlier and (len(earlier) != len(mine) or earlier[0][0] != node):
            damaged(node)
        value = earlier[0][1] if earlier else self.log(stored, node, path)
        self._logs.update(dict.fromkeys(mine, (node, value)))
        return value

    def pairs(self, pairs: Any, path: str, depth: int) -> list[tuple[Any, Any]]:
        """Return the items of a dict, in order."""
        return [(key, self.value(child, path + step(key), depth)) for key, child in read_pairs(pairs)]

    def items(self, nodes: Any, path: str, depth: int) -> list[Any]:
        """Return the elements of a sequence."""
        if type(nodes) is not list:
            damaged(nodes)
        return [self.value(child, f"{path}[{index}]", depth) for index, child in enumerate(nodes)]


def read_pairs(pairs: Any) -> list[tuple[Hashable, Any]]:
    """Return a dict's keys with the nodes of their values, in order; no key comes twice."""
    if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        damaged(pairs)
    made = [(_read_bare(key) if type(key) is str else read_key(key), child) for key, child in pairs]
    if len(_set_of([key for key, _ in made])) != len(made):
        damaged(pairs)
    return made


def _set_of(keys: list[Hashable]) -> frozenset[Hashable]:
    """Return ``keys`` as a set, in a time that grows as their number does.

    Text hashes differently in each process. Integers, floats and tuples don't: whoever writes a file can choose thousands
    with one hash, and a set or dict of them takes time by the square of their number.
    """
    if len(keys) > _MOST_WITH_ONE_HASH:
        counts = Counter(hash(key) for key in keys if type(key) is not str)
        if max(counts.values(), default=0) > _MOST_WITH_ONE_HASH:
            damaged(keys[:1])
    return frozenset(keys)


def _read_bare(key: str) -> str:
    return key if is_utf8(key) else damaged(key)


def read_key(node: Any, depth: int = 0) -> Hashable:
    """Return a dict's key or a set's element."""
    match node:
        case ["tuple" | "frozenset" as tag, list(parts)] if depth < MOST_KEY_LEVELS:
            made = [read_key(part, depth + 1) for part in parts]
            return tuple(made) if tag == "tuple" else _unique(made)
        case [str(tag), *_] if tag in _HASHABLE:
            key: Hashable = DECODE[tag](node)
            return key if not isinstance(key, np.void) else damaged(node)
        case _:
            return damaged(node)


def _unique(elements: list[Hashable]) -> frozenset[Hashable]:
    made = _set_of(elements)
    return made if len(made) == len(elements) else damaged(elements)


def read_elements(node: Node) -> frozenset[Hashable]:
    """Return the elements of a ``set`` or ``frozenset`` node."""
    if len(node) != 2 or type(node[1]) is not list:
        damaged(node)
    return _unique([read_key(element) for element in node[1]])


def read_maxlen(node: Node) -> int | None:
    """Return how many items a ``deque`` node's deque holds at most."""
    match node:
        case [_, None, list()]:
            return None
        case [_, int(maxlen), list(items)] if type(maxlen) is int and len(items) <= maxlen < 1 << 63:
            return maxlen
        case _:
            return damaged(node)


class Inflater(TreeReader):
    """Build everything anew. A leaf that several nodes share becomes one array again."""

    def __init__(self, leaves: Sequence[LeafRecord], source: LeafSource, *, trust_pickle: bool) -> None:
        super().__init__(leaves)
        self.source = source
        self.trust_pickle = trust_pickle
        self.made: dict[int, Any] = {}

    def leaf(self, node: Node, path: str) -> Any:
        record = record_at(self.leaves, node)
        index = node[1]
        if index not in self.made:
            raw = _RAW.get(record.kind)
            self.made[index] = self._raw(index, record, raw) if raw is not None else self._array(index, record, path)
        return self.made[index]

    def _array(self, index: int, record: LeafRecord, path: str) -> Any:  # noqa: ARG002 - the path is for subclasses
        kind = kind_of(record)
        try:
            value = kind.make(record.spec)
        except MemoryError as error:
            raise too_large(record) from error
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise CorruptError("a stored leaf cannot exist", kind="damaged-tree", path=record.path, spec=record.spec) from error
        if record.size_bytes:
            self.fill(index, kind, value)
        return value

    def fill(self, index: int, kind: LeafKind, value: Any) -> None:
        """Have the bytes of leaf ``index`` read into a fresh ``value``."""
        memory = kind.memory(value)
        assert memory is not None, "a fresh array is contiguous and writable"
        self.source.read_into(index, memory)

    def _raw(self, index: int, record: LeafRecord, read: Callable[[bytearray], Any]) -> Any:
        check_raw(record)
        if record.kind == "opaque" and not self.trust_pickle:
            unpickled(b"", record.path, trust=False)  # refused before a byte is read
        try:
            data = bytearray(record.size_bytes)
        except MemoryError as error:
            raise too_large(record) from error
        if data:
            self.source.read_into(index, memoryview(data))
            self.source.settle()
        if record.kind == "opaque":
            return unpickled(data, record.path, trust=self.trust_pickle)
        return read(data)

    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:  # noqa: ARG002 - they are for subclasses
        check_log(stored, self.leaves)
        if isinstance(stored, StoredItems):
            return Items(deque(self.stored_items(stored)), count=stored.count)
        rows = new_rows(stored)
        fill_rows(rows, stored, self.leaves, self.source)
        return rows

    def stored_items(self, stored: StoredItems) -> list[Any]:
        """Return the items of a queue, built anew."""

        def build(node: Node, leaves: Sequence[LeafRecord], source: LeafSource) -> Any:
            return _ItemInflater(leaves, source, trust_pickle=self.trust_pickle).value(node)

        return stored_items(stored, self.leaves, self.source, build)

    def object(self, kind: str, state: Any) -> Any:
        known = object_kind_named(kind)
        if known is None:
            raise unknown_kind(kind)
        if known.make is None:
            return state
        self.source.settle()
        return call_kind(known, known.make, state)


class _ItemInflater(Inflater):
    """Build one item of a queue. No log stands in it."""

    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:  # noqa: ARG002 - there is none
        damaged(node)


def call_kind(kind: ObjectKind, function: Callable[..., Any], *args: Any) -> Any:
    """Call an object kind's ``make`` or ``set`` with saved state; whatever it chokes on is damage."""
    try:
        return function(*args)
    except MilepostError:
        raise
    except Exception as error:  # any error of any kind's own code means that the state is not one of its
        raise CorruptError("a stored object's state is not one of its kind", kind="damaged-tree", is_a=kind.name) from error


class _Skeleton(TreeReader):
    def leaf(self, node: Node, path: str) -> LeafSpec:  # noqa: ARG002 - reads no leaf
        return record_at(self.leaves, node).spec

    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:  # noqa: ARG002 - reads no leaf
        return stored

    def object(self, kind: str, state: Any) -> Any:  # noqa: ARG002 - the plain state is the answer
        return state


class _Checker(_Skeleton):
    def leaf(self, node: Node, path: str) -> LeafSpec:
        record = record_at(self.leaves, node)
        if record.kind not in _RAW:
            kind_of(record)
        else:
            check_raw(record)
        return super().leaf(node, path)

    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:
        check_log(stored, self.leaves)
        return super().log(stored, node, path)

    def object(self, kind: str, state: Any) -> Any:
        if object_kind_named(kind) is None:
            raise unknown_kind(kind)
        return state


_RAW: dict[str, Callable[[bytearray], Any]] = {
    "bytes": bytes,
    "bytearray": lambda data: data,
    "str": lambda data: bytes_text(bytes(data)),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "opaque": bytes,
}


def _read_ordered(reader: TreeReader, node: Node, path: str, depth: int) -> OrderedDict[Any, Any]:
    if len(node) not in (2, 3):
        damaged(node)
    made = OrderedDict(reader.pairs(node[1], path, depth))
    if len(node) == 3:
        attributes = dict(reader.pairs(node[2], path, depth))
        if not all(type(name) is str for name in attributes):
            damaged(node)
        vars(made).update(attributes)
    return made


def _read_object(reader: TreeReader, node: Node, path: str, depth: int) -> Any:
    match node:
        case [_, str(kind), list(state)]:
            return reader.object(kind, reader.value(state, path, depth))
        case _:
            return damaged(node)


def only(node: Node) -> Any:
    """Return what a node with one argument holds."""
    return node[1] if len(node) == 2 else damaged(node)


_Read = Callable[[TreeReader, Node, str, int], Any]

_CONTAINERS: dict[str, _Read] = {
    "dict": lambda reader, node, path, depth: dict(reader.pairs(only(node), path, depth)),
    "ordered-dict": _read_ordered,
    "list": lambda reader, node, path, depth: reader.items(only(node), path, depth),
    "tuple": lambda reader, node, path, depth: tuple(reader.items(only(node), path, depth)),
    "deque": lambda reader, node, path, depth: deque(reader.items(node[-1], path, depth), read_maxlen(node)),
    "set": lambda _, node, __, ___: set(read_elements(node)),
    "frozenset": lambda _, node, __, ___: read_elements(node),
    "object": _read_object,
    "stateful": lambda reader, node, path, depth: reader.value(only(node), path, depth),
}
