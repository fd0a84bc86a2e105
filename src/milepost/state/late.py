"""Copy leaves of which some lie where only a device's own copies reach: those arrive late, and are waited for at the end.

A kind whose arrays may lie on a device registers a `LateKind` for their type beside its leaf kind. Where none is
registered, each leaf is copied at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from milepost.state.leaves import LiveLeaf

Copies = list[tuple[Any, memoryview]]
"""Values, none of them empty, and where their bytes go."""
Arrived = Callable[[], None]
"""Waits until every byte of the copies is there. Until it has returned nobody may read them; it may be called by any thread."""


class LateKind(Protocol):
    """Copy arrays of a device in two steps, so that nobody waits for the device in between."""

    def is_late(self, value: Any) -> bool:
        """Return whether ``value`` lies on a device; a value that does not is copied by its leaf kind."""

    def begin(self, copies: Copies) -> Arrived:
        """Start to copy. What is copied are the values as they are now: whatever the caller asks of the device from here
        on, an update in place for one, happens after. A call forgets all that an earlier one has not delivered yet.
        """


_late: dict[type, LateKind] = {}


def register_late(type_: type, kind: LateKind) -> None:
    """Let arrays of exactly ``type_`` arrive late if ``kind`` says so."""
    _late[type_] = kind


def is_late(leaf: LiveLeaf) -> bool:
    """Return whether a leaf lies where only a device's own copies reach."""
    kind = _late.get(type(leaf.value))
    return kind is not None and leaf.size_bytes > 0 and kind.is_late(leaf.value)


def start_copies(leaves: Iterable[tuple[LiveLeaf, memoryview]]) -> Arrived:
    """Copy leaves to where they belong, and return what waits for those of them that a device still copies.

    The device begins first: it copies while this thread does.
    """
    if not _late:
        for leaf, into in leaves:
            leaf.copy_into(into)
        return nothing_late
    here: list[tuple[LiveLeaf, memoryview]] = []
    late: dict[LateKind, Copies] = {}
    for leaf, into in leaves:
        if is_late(leaf):
            late.setdefault(_late[type(leaf.value)], []).append((leaf.value, into))
        else:
            here.append((leaf, into))
    waits = [kind.begin(copies) for kind, copies in late.items()]
    for leaf, into in here:
        leaf.copy_into(into)
    return lambda: [wait() for wait in waits].clear()


def nothing_late() -> None:
    """Wait for nothing: all is there."""
