"""Read a layer's attributes that are state, and leave out those that are not."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np

from milepost.envs.plain import Recorder, is_atom
from milepost.envs.settings import changed_settings

_STRUCTURE = frozenset(
    {"metadata", "_metadata", "spec", "_cached_spec", "_saved_kwargs", "render_mode", "_ezpickle_args", "_ezpickle_kwargs"}
)
_LAYERS = ("env", "venv", "envs")
_OF_VECTORS = frozenset({"env_fns", "class_attributes", "keys", "waiting", "closed", "autoreset_mode", "_autoreset_mode"})
_SCRATCH_OF_VECTORS = frozenset({"buf_infos", "reset_infos", "actions", "_actions", "_env_obs"})
_SCRATCH = {
    "gymnasium.vector.": _SCRATCH_OF_VECTORS,
    "stable_baselines3.common.vec_env.": _SCRATCH_OF_VECTORS,
    "gymnasium.wrappers.": frozenset({"_previous_data"}),
}
"""Overwritten before anybody reads it, and full of whatever the env's infos hold; by where the class comes from."""
_NOT_STATE = {
    "gymnasium.vector.": _OF_VECTORS,
    "stable_baselines3.common.vec_env.": _OF_VECTORS,
    # The transition table of the toy texts is a constant of thousands of numbers.
    "gymnasium.envs.toy_text.": frozenset({"P"}),
    # Clocks of this process mean nothing in the next.
    "gymnasium.wrappers.": frozenset({"episode_start_time", "episode_start_times"}),
}
"""By where the class comes from that gives the name its meaning: elsewhere a ``closed`` door is state like any other."""


def attributes_of(env: Any, recorder: Recorder, path: str, *, known: bool, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of this layer alone.

    Of a ``known`` class, of which it was checked that none of its constructor's arguments moves during an episode, these are not
    among them unless training has changed them: the script sets them again, and a changed setting wins. What moves by itself is
    no setting: a space has a generator, and an object given in the place of a function may remember its calls.
    """
    cls = env.__class__
    configured = arguments_of(cls) if known else frozenset()
    settings = {name for name, value in vars(env).items() if name.lstrip("_") in configured and _is_setting(value)}
    leads = {name for name in _LAYERS if _holds_layers(vars(env).get(name))}
    skip = settings.union(skip, leads, _STRUCTURE, _not_state(cls))
    state = recorder.attributes(env, path, skip=skip, optional=_scratch(cls))
    if "checked_data_reuse" in state and "_previous_data" not in state:
        # Gymnasium's checker compares the first steps with what went before. Without that it fails: it is to have done so.
        state["checked_data_reuse"] = True
    return state | changed_settings(env, frozenset(settings.difference(_STRUCTURE, _not_state(cls), leads)), recorder, path)


def _holds_layers(value: object) -> bool:
    layers = value if isinstance(value, (list, tuple)) else [value]
    return all(hasattr(layer, "reset") for layer in layers)


@cache
def _not_state(cls: Any) -> frozenset[str]:
    return _named(cls, _NOT_STATE)


@cache
def _scratch(cls: Any) -> frozenset[str]:
    return _named(cls, _SCRATCH)


def _named(cls: Any, table: Mapping[str, frozenset[str]]) -> frozenset[str]:
    places = [base.__module__ for base in cls.__mro__]
    return frozenset().union(*(names for place, names in table.items() if any(name.startswith(place) for name in places)))


def _is_setting(value: object) -> bool:
    return is_atom(value) or isinstance(value, (enum.Enum, np.ndarray, dict, list, tuple, set, frozenset))


@cache
def arguments_of(cls: Any) -> frozenset[str]:
    """Return the names of all arguments of a class's constructors; asked for at every save, while training waits."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters)
