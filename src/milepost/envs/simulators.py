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
from milepost.envs.compare import first_difference
from milepost.envs.plain import ABSENT, LeftOut, Recorder, Refiller
from milepost.envs.sticky import capture_acts, follow, restore_acts
from milepost.envs.way import Way
from milepost.records import Difference


class Ale(Way):
    """Take an Atari game's state with the emulator's own random generator, and the attributes around it."""

    name = "ale"

    def fits(self, env: Any) -> bool:
        """Return whether it is an ``AtariEnv``."""
        return _is_a(env, "ale_py.env", "AtariEnv")

    def attach(self, env: Any) -> None:
        """Begin to remember its actions."""
        follow(env)

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return the emulator's bytes; what it shows now is not in them, and is drawn by its next frame."""
        known = type(env).__module__ == "ale_py.env"
        follow(env)
        acts = capture_acts(env)
        if acts is not None and not acts["known"]:
            recorder.left_out.append(LeftOut(path, _UNKNOWN_ACTION))
        return {
            "game": _game(env),
            "emulator": _emulator(env),
            "acts": acts,
            "attributes": attributes_of(env, recorder, path, known=known, skip=("ale", "_action_set")),
        }

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Give the emulator its bytes, and the action that it may repeat."""
        restore_acts(env, state["emulator"], state["acts"])
        refiller.attributes(env, state["attributes"], path)

    def observed(self, env: Any) -> Any:
        """Return the game's memory, the lives and the count of frames.

        Its bytes are not compared: some games' first frame after a restore makes up for marks in which these differ.
        """
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
        names = _names_of(env.model)
        state: dict[str, Any] = {
            "layout": _layout(env.data, names),
            "integration": _integration(env),
            "data": _packed(env.data, names),
            "attributes": attributes_of(env, recorder, path, known=_is_gymnasiums(env), skip=_MADE_ANEW),
        }
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

    def unlike(self, env: Any, state: Any, path: str) -> Difference | None:
        """Compare every array; what ``observed`` shows is not all that the next step reads."""
        found = first_difference(state["integration"], _integration(env), f"{path} integration state")
        return found or first_difference(state["data"], _packed(env.data, _names_of(env.model)), f"{path} arrays")

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:
        """Return whether the model has other arrays: it was built otherwise, or by another version."""
        here = _layout(env.data, _names_of(env.model))
        found = [] if state["layout"] == here else [Difference(f"{path} arrays", state["layout"], here, "env")]
        if not found and "model" in state:
            sizes = {name: len(array) for name, array in _packed(env.model, _arrays_of(env.model)).items()}
            saved = {name: array.shape[0] for name, array in state["model"].items()}
            found = [] if saved == sizes else [Difference(f"{path} model", str(saved), str(sizes), "env")]
        return found


_UNKNOWN_ACTION = (
    "its emulator repeats actions, and which was the last is known only some frames after it was first seen; "
    "a later save holds it, and with milepost.envs.attach before the first reset every one does"
)
_GYMNASIUMS = "gymnasium.envs.mujoco."
_MADE_ANEW = ("model", "data", "mujoco_renderer", "fullpath")
_POINTERS = ("plugin_data",)
_VARYING = "_awake_ind"
"""Lists of what is awake are as long as it is many, and every step makes them."""
_names: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def _is_a(env: Any, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(env, getattr(found, name))


def _is_gymnasiums(env: Any) -> bool:
    return type(env).__module__.startswith(_GYMNASIUMS)


def _emulator(env: Any) -> Any:
    return np.frombuffer(env.clone_state(include_rng=True).serialize(), np.uint8)


def _game(env: Any) -> str:
    return f"{env._game} (ale-py {sys.modules['ale_py'].__version__})"


def _integration(env: Any) -> Any:
    mujoco = sys.modules["mujoco"]
    state = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def _names_of(model: Any) -> tuple[str, ...]:
    """Return the arrays of data for this model that always have the same shape.

    The rest are as long as there are contacts just now, lie in memory that every step begins anew, and are empty in new data.
    """
    if model not in _names:
        _names[model] = _arrays_of(sys.modules["mujoco"].MjData(model))
    return _names[model]


def _arrays_of(owner: Any) -> tuple[str, ...]:
    names = (name for name in dir(owner) if not name.startswith("_") and name not in _POINTERS and not name.endswith(_VARYING))
    return tuple(name for name in names if _is_there(getattr(owner, name)))


def _is_there(value: Any) -> bool:
    # An array that owns its memory is made up for whoever asks: what would be there is not there now.
    array = isinstance(value, np.ndarray) and value.size > 0 and value.dtype.kind in "biuf"
    return array and bool(value.flags.writeable) and not value.flags.owndata


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
