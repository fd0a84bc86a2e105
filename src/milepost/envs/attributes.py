"""Read a layer's attributes that are state, and leave out those that are not."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection
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
# Overwritten before anybody reads them, and full of whatever the env's infos hold.
_SCRATCH = frozenset({"buf_infos", "reset_infos", "actions", "_actions", "_previous_data", "_env_obs"})
_NOT_STATE = {
    "gymnasium.vector.": _OF_VECTORS,
    "stable_baselines3.common.vec_env.": _OF_VECTORS,
    # The transition table of the toy texts is a constant of thousands of numbers.
    "gymnasium.envs.toy_text.": frozenset({"P"}),
    # Clocks of this process mean nothing in the next.
    "gymnasium.wrappers.": frozenset({"episode_start_time", "episode_start_times"}),
}
"""By where the class comes from that gives the name its meaning: elsewhere a ``closed`` door is state like any other."""
_VECTORS = tuple(_NOT_STATE)[:2]


def attributes_of(env: Any, recorder: Recorder, path: str, *, known: bool, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of this layer alone.

    Of a ``known`` class, of which it was checked that none of its constructor's arguments moves during an episode, these are not
    among them unless training has changed them: the script sets them again, and a changed setting wins. What moves by itself is
    no setting: a space has a generator, and an object given in the place of a function may remember its calls.
    """
    cls = env.__class__
    configured = _configured(cls) if known else frozenset()
    settings = {name for name, value in vars(env).items() if name.lstrip("_") in configured and _is_setting(value)}
    leads = {name for name in _LAYERS if _holds_layers(vars(env).get(name))}
    skip = settings.union(skip, leads, _STRUCTURE, _not_state(cls))
    state = recorder.attributes(env, path, skip=skip, optional=_SCRATCH if _comes_from(cls, _VECTORS) else ())
    return state | changed_settings(env, frozenset(settings.difference(_STRUCTURE, _not_state(cls), leads)), recorder, path)


def _holds_layers(value: object) -> bool:
    layers = value if isinstance(value, (list, tuple)) else [value]
    return all(hasattr(layer, "reset") for layer in layers)


@cache
def _not_state(cls: Any) -> frozenset[str]:
    return frozenset().union(*(names for place, names in _NOT_STATE.items() if _comes_from(cls, place)))


def _comes_from(cls: Any, places: str | tuple[str, ...]) -> bool:
    return any(base.__module__.startswith(places) for base in cls.__mro__)


def _is_setting(value: object) -> bool:
    return is_atom(value) or isinstance(value, (enum.Enum, np.ndarray, dict, list, tuple, set, frozenset))


@cache
def _configured(cls: Any) -> frozenset[str]:
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters)
