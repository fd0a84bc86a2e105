"""Walk the node of a value that one rank has flattened, and give its leaves other numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from milepost.records import Node
from milepost.state.kinds import object_kind_named

_SEQUENCES = frozenset({"list", "tuple", "deque"})
_NOT_PLAIN = frozenset({"stateful", "rows", "items"})
"""What comes back as another value than it was: the state of an object for the object, a log without its memory of saves."""


def is_plain(node: Node) -> bool:
    """Return whether a value comes back as what it was."""
    tag = node[0]
    if tag in _NOT_PLAIN:
        return False
    if tag == "object":
        kind = object_kind_named(node[1])
        return kind is not None and kind.make is not None and is_plain(node[2])
    return all(is_plain(child) for child in _children(node))


def renumbered(node: Node, by: int) -> Node:
    """Return the node with each leaf's index raised by ``by``."""
    return _mapped(node, lambda index: index + by) if by else node


def _children(node: Node) -> list[Node]:
    tag = node[0]
    if tag in _SEQUENCES:
        return list(node[-1])
    if tag in ("dict", "ordered-dict"):
        return [item for pairs in node[1:] for _, item in pairs]
    return [node[2]] if tag == "object" else []


def _mapped(node: Node, leaf: Callable[[int], int]) -> Node:
    tag = node[0]
    if tag == "array":
        return [tag, leaf(node[1])]
    if tag in _SEQUENCES:
        return [*node[:-1], [_mapped(child, leaf) for child in node[-1]]]
    if tag in ("dict", "ordered-dict"):
        return [tag, *([[key, _mapped(item, leaf)] for key, item in pairs] for pairs in node[1:])]
    if tag == "object":
        return [tag, node[1], _mapped(node[2], leaf)]
    same: list[Any] = node
    return same
