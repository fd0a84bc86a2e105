"""Read a layer's attributes that are state, and leave out those that are not."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from functools import cache
from typing import Any

from milepost.envs.plain import Recorder

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
    among them: the script sets them again, and a changed setting wins.
    """
    configured = _configured(env.__class__) if known else frozenset()
    names = {name for name in vars(env) if name in _STRUCTURE or name in _NOT_STATE or name.lstrip("_") in configured}
    return recorder.attributes(env, path, skip=names.union(skip), optional=_OPTIONAL)


@cache
def _configured(cls: Any) -> frozenset[str]:
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters)
