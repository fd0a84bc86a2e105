"""Name the leaves of a flattened value: those whose bytes are live memory, and those which the base has already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from milepost.records import LeafSpec

Copy = Callable[[Any, memoryview], None]


@dataclass(frozen=True, slots=True)
class LiveLeaf:
    """Hold one leaf of a live tree. It refers to the live memory: copy it before training goes on."""

    path: str
    """Printable text, valid UTF-8, for people: two leaves may share a path."""
    spec: LeafSpec
    size_bytes: int
    value: Any
    copy: Copy
    piece: bool = False
    """It is a piece of a log: no large array, though it may be one of a large array's many."""

    def copy_into(self, into: memoryview) -> None:
        """Copy the bytes in C order into ``into``: writable bytes, exactly ``size_bytes`` long."""
        if self.size_bytes:
            self.copy(self.value, into)


@dataclass(frozen=True, slots=True)
class KeptLeaf:
    """Name a piece of a log which is in the base, and whose rows are as they were: nothing of it is copied."""

    path: str
    spec: LeafSpec
    size_bytes: int
    digest: str


Leaf: TypeAlias = LiveLeaf | KeptLeaf
