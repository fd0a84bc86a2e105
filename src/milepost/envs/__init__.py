"""Capture environments with their wrappers, and bring them back in place."""

from typing import TYPE_CHECKING, Any

from milepost.envs.capture import Envs, EnvState, attach, capture, describe, differences, is_whole, restore
from milepost.envs.pickles import allow_pickle
from milepost.envs.plain import LeftOut
from milepost.envs.ways import register_plain, register_snapshotter

if TYPE_CHECKING:
    from milepost.envs.reachable import Reachable
    from milepost.envs.verifying import Verdict, verify

__all__ = [
    "EnvState",
    "Envs",
    "LeftOut",
    "Reachable",
    "Verdict",
    "allow_pickle",
    "attach",
    "capture",
    "describe",
    "differences",
    "is_whole",
    "register_plain",
    "register_snapshotter",
    "restore",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what needs Gymnasium, or an engine, when it is asked for."""
    if name in ("Verdict", "verify"):
        from milepost.envs import verifying

        return getattr(verifying, name)
    if name == "Reachable":
        from milepost.envs.reachable import Reachable

        return Reachable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
