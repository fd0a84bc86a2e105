"""List every place where a saved state does not fit the live one, before anything is changed."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from milepost.errors import MilepostError, UsageError
from milepost.records import Difference, LeafRecord, Node
from milepost.state.filling import item_differences, row_differences
from milepost.state.inflate import only, read_maxlen, read_pairs, skeleton
from milepost.state.items import Items
from milepost.state.kinds import comparison, leaf_kind, load_edges, object_kind, object_kind_named
from milepost.state.opaque import Opaque
from milepost.state.paths import step, type_name
from milepost.state.protocol import Comparable, Stateful
from milepost.state.rows import Rows
from milepost.state.scalars import DECODE, damaged
from milepost.state.stored import read_items, read_rows, record_at
from milepost.state.tree import MOST_LEVELS

# Values of one family may take each other's place: a score that began as 0 and was saved as numpy.float64(0.5) is no mismatch.
_FAMILIES: dict[type, str] = {
    type(None): "none",
    bool: "bool",
    int: "number",
    float: "number",
    complex: "number",
    str: "str",
    bytes: "bytes",
    bytearray: "bytearray",
    dict: "dict",
    OrderedDict: "dict",
    list: "list",
    tuple: "tuple",
    deque: "deque",
    set: "set",
    frozenset: "frozenset",
    Opaque: "opaque",
    Rows: "rows",
    Items: "items",
}
_TAG_FAMILIES = {
    "none",
    "bool",
    "bytes",
    "bytearray",
    "dict",
    "list",
    "tuple",
    "deque",
    "set",
    "frozenset",
    "stateful",
    "rows",
    "items",
}
_RAW_FAMILIES = {"str": "str", "bytes": "bytes", "bytearray": "bytearray", "int": "number", "opaque": "opaque"}
_NUMPY_FAMILIES = {"b": "bool", "i": "number", "u": "number", "f": "number", "c": "number", "U": "str", "S": "bytes"}


def compare(live: object, node: Node, leaves: Sequence[LeafRecord], path: str) -> list[Difference]:
    """Return every difference that would stop or spoil `restore`; changes nothing, reads no leaf.

    A difference is: a dict's key on one side only (kind ``missing``: live lacks it; ``unexpected``: saved lacks it), another
    type, dtype or shape. No difference is: another value; None against anything (optional state); another kind of number;
    an empty live dict, a list of another length and what is in a deque (they are data, and overwritten).
    """
    load_edges()
    return list(_Comparer(leaves).differences(live, node, path, 0))


class _Comparer:
    __slots__ = ("leaves",)

    def __init__(self, leaves: Sequence[LeafRecord]) -> None:
        self.leaves = leaves

    def differences(self, live: Any, node: Any, path: str, depth: int) -> Iterator[Difference]:
        if type(node) is not list or not node or type(node[0]) is not str or depth > MOST_LEVELS:
            damaged(node)
        saved, here = self._saved_family(node), _live_family(live, path)
        if here == "none":
            yield from self._made_anew(node, path, depth)
        elif saved != here and not (saved == "none" and not _is_object(live)):
            yield Difference(path, self._saved_text(node), _live_text(live, path), "type")
        elif saved != "none":
            yield from self._within(saved, live, node, path, depth + 1)

    def _within(self, family: str, live: Any, node: Node, path: str, depth: int) -> Iterable[Difference]:
        if family == "array":
            return self._array(live, node, path)
        if family == "dict":
            return self._dict(live, node, path, depth)
        if family in ("list", "tuple"):
            return self._sequence(live, only(node), path, depth)
        if family == "deque":
            return self._deque(live, node, path, depth)
        if family == "rows":
            return row_differences(live, read_rows(node, self.leaves), path)
        if family == "items":
            return item_differences(live, read_items(node, self.leaves), path)
        if family == "stateful" or family.startswith("object "):
            return self._object(live, node, path, depth)
        return ()

    def _array(self, live: Any, node: Node, path: str) -> Iterator[Difference]:
        kind = leaf_kind(type(live))
        assert kind is not None
        saved, here = record_at(self.leaves, node).spec, kind.describe(live, path)
        if saved != here:
            what = "type" if saved.kind != here.kind else "shape" if saved.shape != here.shape else "dtype"
            yield Difference(path, str(saved), str(here), what)

    def _dict(self, live: dict[Any, Any], node: Node, path: str, depth: int) -> Iterator[Difference]:
        pairs = read_pairs(node[1] if len(node) > 1 else None)
        for key, child in pairs:
            at = f"{path}{step(key)}"
            if key in live:
                yield from self.differences(live[key], child, at, depth)
            elif live:
                yield Difference(at, self._saved_text(child), "missing", "missing")
            else:
                yield from self._made_anew(child, at, depth)
        saved = {key for key, _ in pairs}
        for key in live:
            if key not in saved:
                at = f"{path}{step(key)}"
                yield Difference(at, "missing", _live_text(live[key], at), "unexpected")

    def _sequence(self, live: Sequence[Any], nodes: Any, path: str, depth: int) -> Iterator[Difference]:
        if type(nodes) is not list:
            damaged(nodes)
        same = len(nodes) == len(live)
        for index, child in enumerate(nodes):
            at = f"{path}[{index}]"
            yield from self.differences(live[index], child, at, depth) if same else self._made_anew(child, at, depth)

    def _deque(self, live: deque[Any], node: Node, path: str, depth: int) -> Iterator[Difference]:
        maxlen = read_maxlen(node)
        if maxlen != live.maxlen:
            yield Difference(path, f"deque of at most {maxlen}", f"deque of at most {live.maxlen}", "shape")
        for index, child in enumerate(node[2]):
            yield from self._made_anew(child, f"{path}[{index}]", depth)

    def _object(self, live: Any, node: Node, path: str, depth: int) -> Iterator[Difference]:
        """Ask the object, then what is registered for it, then compare its state as a tree."""
        state = node[-1]
        compare_with = comparison(live)
        known = object_kind(type(live))
        if isinstance(live, Comparable):
            yield from _asked(path, live, lambda saved: live.state_differences(saved), skeleton(state, self.leaves))
        elif compare_with is not None:
            yield from _asked(path, live, lambda saved: compare_with(live, saved), skeleton(state, self.leaves))
        else:
            here = known.get(live) if known is not None else live.state_dict()
            yield from self.differences(here, state, path, depth)

    def _made_anew(self, node: Any, path: str, depth: int) -> Iterator[Difference]:
        """Return what has no live object here and can't be made without one."""
        if type(node) is not list or not node or depth > MOST_LEVELS:
            damaged(node)
        known = object_kind_named(node[1]) if node[0] == "object" and len(node) == 3 and type(node[1]) is str else None
        if node[0] == "stateful" or (node[0] == "object" and (known is None or known.make is None)):
            yield Difference(path, self._saved_text(node), "nothing to load it into", "missing")
        elif node[0] in ("dict", "ordered-dict"):
            for key, child in read_pairs(node[1] if len(node) > 1 else None):
                yield from self._made_anew(child, f"{path}{step(key)}", depth + 1)
        elif node[0] in ("list", "tuple", "deque") and type(node[-1]) is list:
            for index, child in enumerate(node[-1]):
                yield from self._made_anew(child, f"{path}[{index}]", depth + 1)

    def _saved_family(self, node: Node) -> str:
        tag = node[0]
        if tag in _TAG_FAMILIES:
            return str(tag)
        if tag in ("int", "float", "complex"):
            return "number"
        if tag == "ordered-dict":
            return "dict"
        if tag == "array":
            kind = record_at(self.leaves, node).kind
            return _RAW_FAMILIES.get(kind, "array")
        if tag == "object" and len(node) == 3:
            return f"object {node[1]}"
        return _family_of(DECODE[tag](node)) if tag in DECODE else damaged(node)

    def _saved_text(self, node: Any) -> str:
        if type(node) is not list or not node or type(node[0]) is not str:
            damaged(node)
        if node[0] == "array":
            return str(record_at(self.leaves, node).spec)
        if node[0] == "object" and len(node) == 3:
            return str(node[1])
        return {
            "stateful": "the state of an object",
            "str-raw": "str",
            "rows": "a ring of rows",
            "items": "a queue of items",
        }.get(node[0], node[0])


def _family_of(value: object) -> str:
    if isinstance(value, np.generic):
        return _NUMPY_FAMILIES.get(value.dtype.kind, f"numpy {value.dtype}")
    return _FAMILIES.get(type(value), "")


def _live_family(value: Any, path: str) -> str:
    if leaf_kind(type(value)) is not None:
        return "array"
    family = _family_of(value)
    if family:
        return family
    kind = object_kind(type(value))
    if kind is not None:
        return f"object {kind.name}"
    if isinstance(value, Stateful) and not isinstance(value, type):
        return "stateful"
    hint = "give it state_dict and load_state_dict, or take it out of the state"
    what = "an object of an unknown type cannot be restored"
    raise UsageError(what, kind="unknown-object", hint=hint, path=path, type=type_name(value))


def _is_object(value: object) -> bool:
    return object_kind(type(value)) is not None or isinstance(value, Stateful)


def _live_text(value: Any, path: str) -> str:
    kind = leaf_kind(type(value))
    return str(kind.describe(value, path)) if kind is not None else type_name(value)


def _asked(path: str, live: object, ask: Callable[[Any], Iterable[Difference]], saved: object) -> Iterator[Difference]:
    """Return what the object's own code finds. A saved state that it can't even read is a difference too."""
    try:
        found = list(ask(saved))
    except MilepostError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever that code stumbles over is reported, beside all else
        yield Difference(path, f"a state it cannot read ({error!r})", type_name(live), "format")
        return
    for each in found:
        joint = "" if each.path[:1] in ("", "/", "[") else "/"
        yield Difference(f"{path}{joint}{each.path}", each.saved, each.live, each.kind)
