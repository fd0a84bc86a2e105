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
    from milepost.envs.verifying import Verdict as Verdict
    from milepost.envs.verifying import verify as verify

__all__ = [
    "EnvState",
    "Envs",
    "FreshWorld",
    "LeftOut",
    "Reachable",
    "ReplayCost",
    "Verdict",
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
    "verify",
]

_HEAVY = {
    "FreshWorld": "milepost.envs.fresh_world",
    "Reachable": "milepost.envs.reachable",
    "Verdict": "milepost.envs.verifying",
    "verify": "milepost.envs.verifying",
}


def __getattr__(name: str) -> object:
    """Import a name at its first use (PEP 562): Gymnasium is heavy, and so is an engine, and nothing else here needs them."""
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name]), name)
    raise AttributeError(f"module 'milepost.envs' has no attribute {name!r}")
