"""Capture environments with their wrappers, and bring them back in place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from milepost.envs.capture import Envs, EnvState, attach, capture, describe, differences, is_whole, restore
from milepost.envs.pickles import allow_pickle
from milepost.envs.plain import LeftOut
from milepost.envs.replayed import register_replayed
from milepost.envs.replaying import ReplayCost, replay_costs
from milepost.envs.ways import register_plain, register_snapshotter

if TYPE_CHECKING:
    from milepost.envs.fresh_world import FreshWorld as FreshWorld
    from milepost.envs.reachable import Reachable as Reachable

__all__ = [
    "EnvState",
    "Envs",
    "FreshWorld",
    "LeftOut",
    "Reachable",
    "ReplayCost",
    "allow_pickle",
    "attach",
    "capture",
    "describe",
    "differences",
    "is_whole",
    "register_plain",
    "register_replayed",
    "register_snapshotter",
    "replay_costs",
    "restore",
]

_WRAPPERS = {"FreshWorld": "milepost.envs.fresh_world", "Reachable": "milepost.envs.reachable"}


def __getattr__(name: str) -> object:
    """Import a wrapper at its first use (PEP 562): Gymnasium is heavy, and not needed for anything else here."""
    if name in _WRAPPERS:
        return getattr(importlib.import_module(_WRAPPERS[name]), name)
    raise AttributeError(f"module 'milepost.envs' has no attribute {name!r}")
