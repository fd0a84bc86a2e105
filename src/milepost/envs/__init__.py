"""Capture environments with their wrappers, and bring them back in place."""

from milepost.envs.capture import Envs, EnvState, attach, capture, describe, differences, is_whole, restore
from milepost.envs.pickles import allow_pickle
from milepost.envs.plain import LeftOut
from milepost.envs.ways import register_plain, register_snapshotter

__all__ = [
    "EnvState",
    "Envs",
    "LeftOut",
    "allow_pickle",
    "attach",
    "capture",
    "describe",
    "differences",
    "is_whole",
    "register_plain",
    "register_snapshotter",
    "restore",
]
