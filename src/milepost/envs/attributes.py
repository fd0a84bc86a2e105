"""Read a layer's attributes that are state, and leave out those that are not."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np

from milepost.envs.plain import Recorder, is_atom, is_code

_STRUCTURE = frozenset(
    {"env", "venv", "envs", "env_fns", "class_attributes", "metadata", "_metadata", "spec", "_cached_spec", "_saved_kwargs"}
    | {"render_mode", "keys", "waiting", "closed", "autoreset_mode", "_autoreset_mode", "_ezpickle_args", "_ezpickle_kwargs"}
)
# The transition table of the toy texts is a constant of thousands of numbers; clocks of this process mean nothing in the next.
_NOT_STATE = {"P", "episode_start_time", "episode_start_times"}
# Overwritten before anybody reads them, and full of whatever the env's infos hold.
_OPTIONAL = {"buf_infos", "reset_infos", "actions", "_actions", "_previous_data", "_env_obs"}


def attributes_of(env: Any, recorder: Recorder, path: str, *, known: bool, skip: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of this layer alone.

    Of a ``known`` class, of which it was checked that none of its constructor's arguments moves during an episode, these are not
    among them: the script sets them again, and a changed setting wins. What moves by itself is no setting: a space has a
    generator, and an object that was given in the place of a function may remember what it was called with.
    """
    configured = arguments_of(env.__class__) if known else frozenset()
    names = {
        name
        for name, value in vars(env).items()
        if name in _STRUCTURE or name in _NOT_STATE or (name.lstrip("_") in configured and _is_setting(value))
    }
    found = recorder.attributes(env, path, skip=names.union(skip), optional=_OPTIONAL)
    if "checked_data_reuse" in found and "_previous_data" not in found:
        # Gymnasium's checker compares the first steps with what went before. Without that it fails: it is to have done so.
        found["checked_data_reuse"] = True
    return found


def _is_setting(value: object) -> bool:
    return is_atom(value) or is_code(value) or isinstance(value, (enum.Enum, np.ndarray, dict, list, tuple, set, frozenset))


@cache
def arguments_of(cls: Any) -> frozenset[str]:
    """Return the names of all arguments of a class's constructors; asked for at every save, while training waits."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters)
