"""Test what keeps milepost's promises: yours (a store of your own) and its own. Import the modules; none is loaded by the core.

- `milepost.testing.StoreTests`: the contract of a store as tests; needs pytest
- `milepost.testing.PowerLossTests`: its durability as tests: the power is cut at every moment
- `milepost.testing.power`: what that stands on, for runs of your own: record file operations, replay every prefix
- `milepost.testing.faults`: a store that pauses, fails, loses answers and dies where a test says so
- `milepost.testing.stopping`: a process that stops before one of its file operations, and goes on when others have worked
- `milepost.testing.sick`: a disk whose system calls fail, one of them or all from one on
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.testing.faults import FaultStore
    from milepost.testing.power_tests import PowerLossTests
    from milepost.testing.store_tests import StoreTests

__all__ = ["FaultStore", "PowerLossTests", "StoreTests"]

_HOMES = {
    "FaultStore": "milepost.testing.faults",
    "PowerLossTests": "milepost.testing.power_tests",
    "StoreTests": "milepost.testing.store_tests",
}


def __getattr__(name: str) -> object:
    """Import a name from its home at its first use: only those who subclass `StoreTests` need pytest."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'milepost.testing' has no attribute {name!r}")
    if home.endswith("_tests"):
        import pytest

        # Else a failing assert in a shipped test says only that it failed.
        pytest.register_assert_rewrite(home, "milepost.testing.store_writing_tests")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
