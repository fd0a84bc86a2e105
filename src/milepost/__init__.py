"""Keep reinforcement-learning runs alive: bit-exact checkpoints of the whole experiment.

The names below are the public ones. Each is imported when it is first used, so that ``import milepost`` costs next to
nothing in the many processes that import a training script and never save (environment workers, for one).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost import adapters, service
    from milepost.engine.checkpoint_engine import CheckpointEngine
    from milepost.engine.oneshot import load, save, verify
    from milepost.errors import (
        ConflictError,
        CorruptError,
        InternalError,
        MilepostError,
        MismatchError,
        MissingExtraError,
        NotFoundError,
        SaveFailed,
        ServiceError,
        StoreError,
        UsageError,
    )
    from milepost.lifecycle.budget import budget
    from milepost.lifecycle.retain import Keep
    from milepost.lifecycle.stopping import Stop, Stopped
    from milepost.lifecycle.triggers import every
    from milepost.records import Difference, LeafSpec, Version
    from milepost.state.items import Items
    from milepost.state.opaque import Opaque
    from milepost.state.protocol import Comparable, Stateful
    from milepost.state.rng import Rng
    from milepost.state.rows import Rows

_HOMES = {
    "CheckpointEngine": "milepost.engine.checkpoint_engine",
    "Comparable": "milepost.state.protocol",
    "ConflictError": "milepost.errors",
    "CorruptError": "milepost.errors",
    "Difference": "milepost.records",
    "InternalError": "milepost.errors",
    "Items": "milepost.state.items",
    "Keep": "milepost.lifecycle.retain",
    "LeafSpec": "milepost.records",
    "MilepostError": "milepost.errors",
    "MismatchError": "milepost.errors",
    "MissingExtraError": "milepost.errors",
    "NotFoundError": "milepost.errors",
    "Opaque": "milepost.state.opaque",
    "Rng": "milepost.state.rng",
    "Rows": "milepost.state.rows",
    "SaveFailed": "milepost.errors",
    "ServiceError": "milepost.errors",
    "Stateful": "milepost.state.protocol",
    "Stop": "milepost.lifecycle.stopping",
    "Stopped": "milepost.lifecycle.stopping",
    "StoreError": "milepost.errors",
    "UsageError": "milepost.errors",
    "Version": "milepost.records",
    "budget": "milepost.lifecycle.budget",
    "every": "milepost.lifecycle.triggers",
    "load": "milepost.engine.oneshot",
    "save": "milepost.engine.oneshot",
    "verify": "milepost.engine.oneshot",
}

__version__ = "0.1.0"
__all__ = [
    "CheckpointEngine",
    "Comparable",
    "ConflictError",
    "CorruptError",
    "Difference",
    "InternalError",
    "Items",
    "Keep",
    "LeafSpec",
    "MilepostError",
    "MismatchError",
    "MissingExtraError",
    "NotFoundError",
    "Opaque",
    "Rng",
    "Rows",
    "SaveFailed",
    "ServiceError",
    "Stateful",
    "Stop",
    "Stopped",
    "StoreError",
    "UsageError",
    "Version",
    "adapters",
    "budget",
    "every",
    "load",
    "save",
    "service",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import a public name from its home at its first use (PEP 562)."""
    if name in ("adapters", "service"):
        return importlib.import_module(f"milepost.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'milepost' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
