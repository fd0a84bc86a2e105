"""Prove that a copy is like the original in everything that can be seen: for copies that were made by pickling.

Both are walked together, through containers and attributes. What cannot be looked into, and does not call itself equal, is a
reason to distrust the copy; so is what the original shares and the copy does not.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milepost.envs.layout import strides_of
from milepost.envs.plain import ABSENT, Recorder, is_atom, is_code, is_small, is_tensor, same

_PAIRS = tuple[Any, Any, str]


def unlike(live: Any, copy: Any, kept: Collection[Any], path: str) -> str | None:
    """Return the first reason why ``copy`` is not a copy of ``live``; objects of ``kept`` are in both the very same."""
    walk = _Walk({id(held) for held in kept})
    waiting: list[_PAIRS] = [(live, copy, path)]
    while waiting:
        one, other, here = waiting.pop()
        found = walk.look(one, other)
        if isinstance(found, str):
            return f"{here}: {found}"
        waiting += [(left, right, f"{here}{step}") for left, right, step in reversed(found)]
    return None


@dataclass(slots=True)
class _Walk:
    kept: set[int]
    met: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """What was met in the original, with its counterpart."""
    counterparts: dict[int, int] = field(default_factory=dict)
    owners: dict[int, Any] = field(default_factory=dict)
    """The memory of the arrays that were met."""

    def look(self, one: Any, other: Any) -> str | list[_PAIRS]:
        """Return why these two differ, or what is in them."""
        if type(one) is not type(other):
            return f"a `{type(one).__name__}` is a `{type(other).__name__}` in the copy"
        if is_atom(one):
            return [] if same(one, other) else f"{one!r:.80} is {other!r:.80} in the copy"
        if isinstance(one, types.MethodType):
            return [(one.__self__, other.__self__, ".__self__"), (one.__func__, other.__func__, ".__func__")]
        if id(one) in self.kept or is_code(one) or isinstance(one, enum.Enum):
            return [] if one is other or is_code(one) else "the copy has another one"
        if id(one) in self.met or id(other) in self.counterparts:
            alike = id(one) in self.met and self.met[id(one)][1] is other
            return [] if alike else "what is one object in the original are two in the copy, or the other way round"
        if one is other and not isinstance(one, (tuple, frozenset)):
            return f"the pickle names this `{type(one).__name__}`, and does not hold it"
        self.met[id(one)] = one, other
        self.counterparts[id(other)] = id(one)
        return self._inside(one, other)

    def _inside(self, one: Any, other: Any) -> str | list[_PAIRS]:
        if isinstance(one, np.ndarray):
            return self._array(one, other)
        if is_tensor(one):
            return [] if one.device == other.device and same(one, other) else "the tensor is another one in the copy"
        if is_small(one):
            tree, copied = Recorder().value(one, ""), Recorder().value(other, "")
            return [] if tree is not ABSENT and same(tree, copied) else "it stands elsewhere in the copy"
        if isinstance(one, (set, frozenset)):
            return [] if one == other else "the set is another one in the copy"
        if isinstance(one, (dict, list, tuple, deque)) and len(one) != len(other):
            return f"{len(one)} items are {len(other)} in the copy"
        content = [*_items(one, other), *_attributes(one, other)]
        if content or _is_open(one):
            return content
        return [] if _call_themselves_equal(one, other) else f"a `{type(one).__name__}` cannot be compared with its copy"

    def _array(self, one: Any, other: Any) -> str | list[_PAIRS]:
        owner = one
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) in self.owners:
            return "it shares its memory with another array, and in the copy it does not"
        self.owners[id(owner)] = owner
        if one.dtype.hasobject and one.dtype == other.dtype and one.shape == other.shape:
            return [(one.reshape(-1).tolist(), other.reshape(-1).tolist(), "")]
        if strides_of(one) != strides_of(other):
            return "the array lies in memory in another order in the copy"
        return [] if same(np.asarray(one), np.asarray(other)) else "the array is another one in the copy"


def _items(one: Any, other: Any) -> Iterator[_PAIRS]:
    if isinstance(one, dict):
        yield list(one), list(other), ".keys()"
        yield from ((one[key], value, f"[{key!r:.40}]") for key, value in zip(one, other.values(), strict=True))
    elif isinstance(one, (list, tuple, deque)):
        yield from ((left, right, f"[{index}]") for index, (left, right) in enumerate(zip(one, other, strict=True)))


def _attributes(one: Any, other: Any) -> Iterator[_PAIRS]:
    """Yield the attributes of an object all of whose memory they are; of any other they say too little."""
    if not is_seen_through(type(one)):
        return
    left, right = attributes_held(one), attributes_held(other)
    yield sorted(left), sorted(right), " attributes"
    yield from ((left[name], right[name], f".{name}") for name in left if name in right)


def attributes_held(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    slots = {name: getattr(owner, name) for name in _slots(type(owner)) if hasattr(owner, name)}
    return {**slots, **getattr(owner, "__dict__", {})}


def _slots(cls: type) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        names = vars(base).get("__slots__", ())
        names = (names,) if isinstance(names, str) else tuple(names)
        found += [
            f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            for name in names
            if name not in ("__dict__", "__weakref__")
        ]
    return found


def is_seen_through(cls: type) -> bool:
    """Return whether all memory of such an object is its slots, its dict and its list of weak references: none is hidden in C."""
    words = len(_slots(cls)) + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return cls is not object and cls.__itemsize__ == 0 and cls.__basicsize__ == object.__basicsize__ + 8 * words


def _is_open(value: Any) -> bool:
    return type(value) is object or isinstance(value, (dict, list, tuple, deque)) or is_seen_through(type(value))


def _call_themselves_equal(one: Any, other: Any) -> bool:
    return "__eq__" in {name for base in type(one).__mro__[:-1] for name in vars(base)} and bool(one == other)
