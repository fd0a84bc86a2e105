"""Capture the simulators whose exact state is known: the Arcade Learning Environment, and MuJoCo.

Pickles and copies of both are silently wrong. Neither is imported here: if an env is one of theirs, they are there already.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from milepost.envs.attributes import attributes_of
from milepost.envs.plain import ABSENT, Recorder, Refiller
from milepost.envs.way import Way
from milepost.records import Difference


class Ale(Way):
    """Take an Atari game's state with the emulator's own random generator, and the attributes around it."""

    name = "ale"

    def fits(self, env: Any) -> bool:
        """Return whether it is an ``AtariEnv``."""
        return _is_a(env, "ale_py.env", "AtariEnv")

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return the emulator's bytes; what it shows now is not in them, and is drawn by its next frame."""
        known = type(env).__module__ == "ale_py.env"
        return {
            "game": _game(env),
            "emulator": np.frombuffer(env.clone_state(include_rng=True).serialize(), np.uint8),
            "attributes": attributes_of(env, recorder, path, known=known, skip=("ale", "_action_set")),
        }

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Give the emulator its bytes."""
        env.restore_state(sys.modules["ale_py"].ALEState(state["emulator"].tobytes()))
        refiller.attributes(env, state["attributes"], path)

    def observed(self, env: Any) -> Any:
        """Return the game's memory, the lives and the count of frames."""
        return {"ram": env.ale.getRAM(), **env._get_info()}

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:
        """Return whether it is another game, or another version's emulator: their bytes do not fit."""
        here = _game(env)
        return [] if state["game"] == here else [Difference(f"{path} game", state["game"], here, "env")]


class Mujoco(Way):
    """Take MuJoCo's integration state, every array that a model of this shape has, and the attributes around them.

    The integration state alone is not enough: Gymnasium's envs observe derived arrays as the last step left them, and neither it
    nor a forward pass brings these back.
    """

    name = "mujoco"

    def fits(self, env: Any) -> bool:
        """Return whether it is a ``MujocoEnv``."""
        return _is_a(env, "gymnasium.envs.mujoco.mujoco_env", "MujocoEnv")

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return copies. Of a class that is not Gymnasium's the model is taken, too: it may be changed as training goes on."""
        mujoco = sys.modules["mujoco"]
        names = _names_of(env.model)
        state: dict[str, Any] = {
            "layout": _layout(env.data, names),
            "integration": np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION)),
            "data": _packed(env.data, names),
            "attributes": attributes_of(env, recorder, path, known=_is_gymnasiums(env), skip=_MADE_ANEW),
        }
        mujoco.mj_getState(env.model, env.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
        if not _is_gymnasiums(env):
            state["model"] = _packed(env.model, _arrays_of(env.model))
            state["options"] = _options(env.model.opt)
        return state

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Write all of it where it was. No forward pass: it would derive anew what the last step left."""
        mujoco = sys.modules["mujoco"]
        if "model" in state:
            _unpack(env.model, _arrays_of(env.model), state["model"])
            for name, value in state["options"].items():
                setattr(env.model.opt, name, value)
        mujoco.mj_setState(env.model, env.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
        _unpack(env.data, _names_of(env.model), state["data"])
        refiller.attributes(env, state["attributes"], path)

    def observed(self, env: Any) -> Any:
        """Return the observation, if its class takes it as Gymnasium's do: without a draw."""
        method = getattr(type(env), "_get_obs", None)
        return env._get_obs() if getattr(method, "__module__", "").startswith(_GYMNASIUMS) else ABSENT

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:
        """Return whether the model has other arrays: it was built otherwise, or by another version."""
        here = _layout(env.data, _names_of(env.model))
        found = [] if state["layout"] == here else [Difference(f"{path} arrays", state["layout"], here, "env")]
        if not found and "model" in state:
            sizes = {name: len(array) for name, array in _packed(env.model, _arrays_of(env.model)).items()}
            saved = {name: array.shape[0] for name, array in state["model"].items()}
            found = [] if saved == sizes else [Difference(f"{path} model", str(saved), str(sizes), "env")]
        return found


_GYMNASIUMS = "gymnasium.envs.mujoco."
_MADE_ANEW = ("model", "data", "mujoco_renderer", "fullpath")
_POINTERS = ("plugin_data",)
_names: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def _is_a(env: Any, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(env, getattr(found, name))


def _is_gymnasiums(env: Any) -> bool:
    return type(env).__module__.startswith(_GYMNASIUMS)


def _game(env: Any) -> str:
    return f"{env._game} (ale-py {sys.modules['ale_py'].__version__})"


def _names_of(model: Any) -> tuple[str, ...]:
    """Return the arrays of data for this model that always have the same shape.

    The rest are as long as there are contacts just now, lie in memory that every step begins anew, and are empty in new data.
    """
    if model not in _names:
        _names[model] = _arrays_of(sys.modules["mujoco"].MjData(model))
    return _names[model]


def _arrays_of(owner: Any) -> tuple[str, ...]:
    found = []
    for name in dir(owner):
        value = None if name.startswith("_") or name in _POINTERS else getattr(owner, name)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "biuf" and value.flags.writeable:
            found.append(name)
    return tuple(found)


def _layout(data: Any, names: tuple[str, ...]) -> str:
    text = ";".join(f"{name}{list(getattr(data, name).shape)}" for name in names)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{len(names)} ({digest})"


def _by_dtype(owner: Any, names: tuple[str, ...]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name in names:
        array = getattr(owner, name)
        found.setdefault(array.dtype.name, []).append(array)
    return found


def _packed(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return all arrays of one dtype as one: a hundred leaves an env would cost more than what is in them."""
    arrays = _by_dtype(owner, names).items()
    return {dtype: np.concatenate([array.reshape(-1) for array in found]) for dtype, found in arrays}


def _unpack(owner: Any, names: tuple[str, ...], packed: Mapping[str, Any]) -> None:
    for dtype, arrays in _by_dtype(owner, names).items():
        at = 0
        for array in arrays:
            array[...] = packed[dtype][at : at + array.size].reshape(array.shape)
            at += array.size


def _options(options: Any) -> dict[str, Any]:
    found = {name: getattr(options, name) for name in dir(options) if not name.startswith("_")}
    return {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in found.items()
        if isinstance(value, (int, float, np.ndarray))
    }
