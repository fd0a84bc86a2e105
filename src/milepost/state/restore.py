"""Bring live objects back to a saved state, in place: others hold references to them."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from milepost.errors import MilepostError, MismatchError, UsageError
from milepost.records import LeafRecord, Node
from milepost.state.filling import LeafSource, fill_rows, item_differences, row_differences
from milepost.state.inflate import Inflater, call_kind, only, read_elements, read_maxlen, read_pairs
from milepost.state.items import Items
from milepost.state.kinds import LeafKind, leaf_kind, load_edges, object_kind, takes_own_arrays
from milepost.state.log import TAGS, LogMark
from milepost.state.opaque import Opaque
from milepost.state.paths import step, type_name
from milepost.state.protocol import Stateful
from milepost.state.rows import Rows
from milepost.state.scalars import damaged
from milepost.state.stored import StoredItems, StoredRows, check_log, kind_of, read_log, record_at
from milepost.state.tree import MOST_LEVELS, LiveLeaf, flatten

_OVERWRITABLE = (dict, OrderedDict, list, deque, set, bytearray, Opaque, Rows, Items)


def check_restorable(value: object, path: str) -> None:
    """Raise `UsageError` (kind ``not-restorable``) if a component is of a type that cannot be overwritten in place."""
    load_edges()
    if type(value) in _OVERWRITABLE or (isinstance(value, Stateful) and not isinstance(value, type)):
        return
    kind = leaf_kind(type(value))
    known = object_kind(type(value))
    if (kind is not None and kind.is_writable(value)) or (known is not None and known.set is not None):
        return
    raise UsageError(
        "a component of this type cannot be overwritten in place",
        kind="not-restorable",
        hint="pass a dict, list or array that holds the value, or an object with state_dict and load_state_dict",
        path=path,
        type=type_name(value),
    )


def restore(
    live: Any, node: Node, leaves: Sequence[LeafRecord], source: LeafSource, path: str, *, trust_pickle: bool = False
) -> Any:
    """Overwrite ``live`` with the saved value and return the object to store: ``live`` itself wherever it could be kept.

    Containers, arrays, tensors and generators are kept and overwritten; `Stateful` objects get ``load_state_dict``; what
    is immutable is replaced in its container. Call `compare` first: this does not look for differences, and where saved
    and live do not fit it replaces. If it raises, ``live`` may be half overwritten.
    """
    load_edges()
    restorer = _Restorer(leaves, source, trust_pickle=trust_pickle)
    value = restorer.put(live, node, path, 0)
    source.settle()
    # Only now has every byte verified: until here the next save of a log would have been a whole one.
    for mark in restorer.marks:
        mark.settle(leaves)
        mark.log.adopt()
    return value


class _Restorer(Inflater):
    """Walk the live and the saved tree together; where they part, build anew."""

    def __init__(self, leaves: Sequence[LeafRecord], source: LeafSource, *, trust_pickle: bool) -> None:
        super().__init__(leaves, source, trust_pickle=trust_pickle)
        self.marks: list[LogMark] = []
        """Of the logs that were filled."""
        self._filled: dict[tuple[str, Hashable], int] = {}

    def put(self, live: Any, node: Any, path: str, depth: int) -> Any:
        """Return ``live`` overwritten, or a new value where it could not be."""
        if type(node) is not list or not node or type(node[0]) is not str or depth > MOST_LEVELS:
            damaged(node)
        tag = node[0]
        if tag == "array":
            return self.put_leaf(live, node, path)
        if tag in TAGS:
            return self.put_log(live, node, path)
        put = _PUT.get((tag, type(live)))
        if put is not None:
            return put(self, live, node, path, depth + 1)
        if tag == "object":
            return self.put_object(live, node, path, depth)
        if tag == "stateful" and isinstance(live, Stateful):
            return self.put_stateful(live, node, path)
        return self.value(node, path, depth)

    def put_leaf(self, live: Any, node: Node, path: str) -> Any:
        record = record_at(self.leaves, node)
        if type(live) is bytearray and record.kind == "bytearray":
            live[:] = self.leaf(node, path)
            return live
        if type(live) is Opaque and record.kind == "opaque":
            live.value = self.leaf(node, path).value
            return live
        kind = leaf_kind(type(live))
        if kind is None or not kind.is_writable(live) or kind.describe(live, path) != record.spec:
            return self.leaf(node, path)
        if kind_of(record).name == kind.name and record.size_bytes:
            self._overwrite(live, node[1], kind)
        return live

    def _overwrite(self, live: Any, index: int, kind: LeafKind) -> None:
        key = (kind.name, kind.identity(live))
        earlier = self._filled.get(key)
        if earlier == index:
            return
        if earlier is not None:
            self.source.settle()  # two saved leaves, one live memory: the later must not race with the earlier
        self._filled[key] = index
        memory = kind.memory(live)
        if memory is not None:
            self.source.read_into(index, memory)
        else:
            fresh = self._array(index, self.leaves[index], "")
            self.source.settle()
            kind.copy_from(live, fresh)
        self.made.setdefault(index, live)

    def put_log(self, live: Any, node: Node, path: str) -> Any:
        """Fill a live log that the saved one fits; else build one anew."""
        stored = read_log(node, self.leaves)
        check_log(stored, self.leaves)
        if any(mark.log is getattr(live, "log", None) for mark in self.marks):
            self.source.settle()  # two saved logs, one live one: the later must not race with the earlier
        if isinstance(stored, StoredRows) and type(live) is Rows and not row_differences(live, stored, path):
            self.marks.append(live.begin_load(stored.count, node))
            fill_rows(live, stored, self.leaves, self.source)
            return live
        if isinstance(stored, StoredItems) and type(live) is Items and not item_differences(live, stored, path):
            self.marks.append(live.begin_load(self.stored_items(stored), stored.count, node))
            return live
        return self.any_log(node, path)

    def put_object(self, live: Any, node: Node, path: str, depth: int) -> Any:
        known = object_kind(type(live))
        match node:
            case [_, str(name), list(state)] if known is not None and known.set is not None and known.name == name:
                saved = self.value(state, path, depth + 1)
                self.source.settle()
                call_kind(known, known.set, live, saved)
                return live
            case _:
                return self.value(node, path, depth)

    def put_stateful(self, live: Stateful, node: Node, path: str) -> Stateful:
        """Give an object its state. Its arrays are its own: no other object may come to share memory with it."""
        inside = _Inside(self, live) if not takes_own_arrays(live) else _OwnArrays(self, live)
        state = inside.value(node)
        self.source.settle()
        try:
            live.load_state_dict(state)
        except MilepostError:
            raise
        except Exception as error:
            message = "an object refused its saved state"
            raise MismatchError(
                message,
                (),
                kind="refused-state",
                hint="make the object as it was when it was saved, or load without it: resume(parts=[...])",
                path=path,
                type=type_name(live),
                said=error,
            ) from error
        return live


class _Inside(Inflater):
    """Build an object's state anew, but for its logs: a `Rows` or `Items` of its ``state_dict`` is filled where it is."""

    def __init__(self, restorer: _Restorer, live: Stateful) -> None:
        super().__init__(restorer.leaves, restorer.source, trust_pickle=restorer.trust_pickle)
        self._restorer = restorer
        self._live = live
        self._own_logs: dict[str, Rows | Items] | None = None

    def log(self, stored: StoredRows | StoredItems, node: Node, path: str) -> Any:
        if self._own_logs is None:
            found = list(_logs_in(self._live.state_dict(), "", 0))
            paths = Counter(at for at, _ in found)
            self._own_logs = {at: log for at, log in found if paths[at] == 1}
        live = self._own_logs.get(path)
        return super().log(stored, node, path) if live is None else self._restorer.put_log(live, node, path)


def _logs_in(value: Any, path: str, depth: int) -> Iterator[tuple[str, Rows | Items]]:
    """Return the logs within plain containers, by the path that a reader of the tree comes to them on."""
    if type(value) in (Rows, Items):
        yield path, value
    elif depth <= MOST_LEVELS and type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from _logs_in(item, f"{path}{step(key)}", depth + 1)
    elif depth <= MOST_LEVELS and type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _logs_in(item, f"{path}[{index}]", depth + 1)


class _OwnArrays(_Inside):
    """Build a module's state with its own arrays in it, so that their bytes are read straight into place."""

    def __init__(self, restorer: _Restorer, live: Stateful) -> None:
        super().__init__(restorer, live)
        flat = [leaf for leaf in flatten(live.state_dict(), "", allow_pickle=True).leaves if isinstance(leaf, LiveLeaf)]
        paths = Counter(leaf.path for leaf in flat)
        # A path that two arrays share (a key with a slash in it) names neither: it must never be filled twice.
        self._own = {leaf.path: (leaf.spec, leaf.value) for leaf in flat if paths[leaf.path] == 1 and not leaf.piece}

    def _array(self, index: int, record: LeafRecord, path: str) -> Any:
        spec, value = self._own.pop(path, (None, None))
        kind = kind_of(record)
        memory = kind.memory(value) if spec == record.spec and record.size_bytes else None
        if memory is None:
            return super()._array(index, record, path)
        self.source.read_into(index, memory)
        return value


def _put_dict(restorer: _Restorer, live: dict[Any, Any], node: Node, path: str, depth: int) -> dict[Any, Any]:
    if len(node) != 2 and not (node[0] == "ordered-dict" and len(node) == 3):
        damaged(node)
    made = []
    for key, child in read_pairs(node[1]):
        at = f"{path}{step(key)}"
        made.append((key, restorer.put(live[key], child, at, depth) if key in live else restorer.value(child, at, depth)))
    if type(live) is OrderedDict and len(node) == 3:
        vars(live).update(restorer.pairs(node[2], path, depth))
    live.clear()
    live.update(made)
    return live


def _put_each(restorer: _Restorer, live: Sequence[Any], nodes: Any, path: str, depth: int) -> list[Any]:
    """Return the elements of a sequence, the live ones overwritten if there are as many: else it is data, and all is new."""
    if type(nodes) is not list or len(nodes) != len(live):
        return restorer.items(nodes, path, depth)
    pairs = enumerate(zip(live, nodes, strict=True))
    return [restorer.put(item, child, f"{path}[{index}]", depth) for index, (item, child) in pairs]


def _put_list(restorer: _Restorer, live: list[Any], node: Node, path: str, depth: int) -> list[Any]:
    live[:] = _put_each(restorer, live, only(node), path, depth)
    return live


def _put_tuple(restorer: _Restorer, live: tuple[Any, ...], node: Node, path: str, depth: int) -> tuple[Any, ...]:
    made = tuple(_put_each(restorer, live, only(node), path, depth))
    kept = len(made) == len(live) and all(new is old for new, old in zip(made, live, strict=True))
    return live if kept else made


def _put_deque(restorer: _Restorer, live: deque[Any], node: Node, path: str, depth: int) -> deque[Any]:
    maxlen = read_maxlen(node)
    made = deque(restorer.items(node[2], path, depth), maxlen)
    if maxlen != live.maxlen:
        return made
    live.clear()
    live.extend(made)
    return live


def _put_set(_: _Restorer, live: set[Any], node: Node, __: str, ___: int) -> set[Any]:
    made = read_elements(node)
    live.clear()
    live.update(made)
    return live


def _put_bytearray(restorer: _Restorer, live: bytearray, node: Node, path: str, depth: int) -> bytearray:
    live[:] = restorer.value(node, path, depth)
    return live


_Put = Callable[[_Restorer, Any, Node, str, int], Any]

_PUT: dict[tuple[str, type], _Put] = {
    ("dict", dict): _put_dict,
    ("dict", OrderedDict): _put_dict,
    ("ordered-dict", dict): _put_dict,
    ("ordered-dict", OrderedDict): _put_dict,
    ("list", list): _put_list,
    ("tuple", tuple): _put_tuple,
    ("deque", deque): _put_deque,
    ("set", set): _put_set,
    ("bytearray", bytearray): _put_bytearray,
}
