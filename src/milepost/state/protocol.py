"""Say what an object must offer to be saved and brought back.

Most objects need nothing from milepost: torch modules, optimizers, schedulers and data loaders have ``state_dict`` and
``load_state_dict`` already, and plain trees of containers, arrays and scalars are read and written in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from milepost.records import Difference


@runtime_checkable
class Stateful(Protocol):
    """Give state as a plain tree, and take it back in place.

    ``state_dict`` may return references to live memory: it is copied before the call to ``save`` returns.
    ``load_state_dict`` receives the same tree with fresh arrays, and overwrites the object's own. Only a `milepost.Rows` or
    `milepost.Items` that ``state_dict`` returns, within dicts, lists and tuples, comes back as the very object: filled already.
    """

    def state_dict(self) -> object:
        """Return the state as a tree of containers, arrays and scalars."""

    def load_state_dict(self, state: object, /) -> object:
        """Overwrite the object's state with ``state``."""


@runtime_checkable
class Reporting(Protocol):
    """Name what ``state_dict`` cannot hold; optional beside `Stateful`. It is told at the first save and in the manifest."""

    def left_out(self) -> Iterable[object]:
        """Return what the last ``state_dict`` did not capture, each with its reason when printed; empty where it is whole."""


@runtime_checkable
class Comparable(Protocol):
    """Decide for itself whether a saved state fits; optional beside `Stateful`.

    For objects whose live state says too little (an optimizer before its first step) or may change shape freely.
    """

    def state_differences(self, saved: object, /) -> Iterable[Difference]:
        """Return every difference that would stop or spoil ``load_state_dict(saved)``, paths relative to the object.

        ``saved`` is the saved tree with a `milepost.records.LeafSpec` in the place of each array. Changes nothing.
        """
