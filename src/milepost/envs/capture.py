"""Capture an environment with all its wrappers, and bring it back in place, layer by layer.

Each layer is captured by the first way that applies:

1. ``own``: its class has ``milepost_get_state()`` and ``milepost_set_state(state)``; they speak for this layer alone.
2. ``plain``: its attributes, for classes known (or registered by `register_plain`) to hold nothing but data.
3. ``none``: it is named in ``left_out``. It is never pickled: pickles of simulators are silently wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from milepost.envs.plain import LeftOut, Recorder, Refiller, class_name
from milepost.errors import MismatchError
from milepost.records import Difference
from milepost.state.kinds import register_component

_PLAIN_MODULES = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.toy_text.",
    "gymnasium.wrappers.",
    "gymnasium.vector.",
    "stable_baselines3.common.monitor",
    "stable_baselines3.common.vec_env.",
    "stable_baselines3.common.atari_wrappers",
    "stable_baselines3.common.envs.",
)
_IN_WORKERS = (
    "gymnasium.vector.async_vector_env.AsyncVectorEnv",
    "stable_baselines3.common.vec_env.subproc_vec_env.SubprocVecEnv",
)
_NATIVE_MODULES = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d", "ale_py")
_registered: set[str] = set()

_STRUCTURE = frozenset(
    {"env", "venv", "envs", "env_fns", "class_attributes", "metadata", "_metadata", "spec", "_cached_spec", "_saved_kwargs"}
    | {"render_mode", "keys", "waiting", "closed", "autoreset_mode", "_autoreset_mode"}
)
# The transition table of the toy texts is a constant of thousands of numbers; clocks of this process mean nothing in the next.
_NOT_STATE = {"P", "episode_start_time", "episode_start_times"}
# Overwritten before anybody reads them, and full of whatever the env's infos hold.
_OPTIONAL = {"buf_infos", "reset_infos", "actions", "_actions", "_previous_data", "_env_obs"}


@dataclass(frozen=True, slots=True)
class EnvState:
    """Hold an environment's state as a plain tree (arrays by reference), and what is not in it."""

    tree: dict[str, Any]
    left_out: tuple[LeftOut, ...]


def register_plain(cls: type) -> type:
    """Promise that the whole state of ``cls`` is its plain attributes: no native objects, nothing in modules or files.

    A class decorator. Attributes that are not plain are still found and reported.
    """
    _registered.add(f"{cls.__module__}.{cls.__qualname__}")
    return cls


def capture(env: Any, *, elsewhere: Collection[str] = ()) -> EnvState:
    """Return the state of ``env`` and everything in it. Layers of the classes ``elsewhere`` are saved by somebody else."""
    recorder = Recorder()
    return EnvState(_node(env, recorder, "", elsewhere), tuple(recorder.left_out))


def restore(env: Any, tree: dict[str, Any]) -> None:
    """Bring ``env`` back to a captured state, in place.

    Raises `MismatchError` (kind ``env``), before anything is changed, if the layers are not those that were captured.
    """
    if found := differences(env, tree):
        raise MismatchError("the saved environment is built differently", found, kind="env", hint="build the env as it was")
    _restore(env, tree, Refiller(), "")


def differences(env: Any, tree: dict[str, Any], path: str = "") -> list[Difference]:
    """Return where the layers of ``env`` are not those of the captured tree: another class, another number of envs."""
    here = _join(path, type(env).__name__)
    if tree["class"] != class_name(env):
        return [Difference(here, tree["class"], class_name(env), "env")]
    if tree["way"] not in ("elsewhere", way := _way(env)):
        return [Difference(here, f"captured by way `{tree['way']}`", f"way `{way}`", "env")]
    saved, live = tree["inner"], list(_inner(env))
    if len(saved) != len(live):
        return [Difference(_join(here, "num_envs"), str(len(saved)), str(len(live)), "env")]
    names = [here] if len(live) == 1 else [f"{here}[{index}]" for index in range(len(live))]
    return [
        difference for layer, node, name in zip(live, saved, names, strict=True) for difference in differences(layer, node, name)
    ]


def is_whole(tree: dict[str, Any]) -> bool:
    """Return whether every layer of a captured tree was captured. If not, the env must be reset after a restore."""
    return tree["way"] != "none" and all(map(is_whole, tree["inner"]))


def describe(env: Any) -> str:
    """Return the layers of ``env`` in one line: ``DummyVecEnv<4 x Monitor<TimeLimit<CartPoleEnv>>>``."""
    inner = [describe(layer) for layer in _inner(env)]
    name = type(env).__name__
    if not inner:
        identity = getattr(getattr(env, "spec", None), "id", None)
        return f"{name}({identity})" if identity else name
    count = f"{len(inner)} x " if isinstance(vars(env).get("envs"), (list, tuple)) else ""
    return f"{name}<{count}{inner[0]}>" if len(set(inner)) == 1 else f"{name}<{', '.join(inner)}>"


def capture_layer(env: Any, recorder: Recorder, path: str) -> Any:
    """Return the state of this one layer, or None if it cannot be captured."""
    way = _way(env)
    if way == "own":
        return env.milepost_get_state()
    if way == "none":
        recorder.left_out.append(LeftOut(path, _reason(env)))
        return None
    configured = () if class_name(env) in _registered else _configured(env.__class__)
    skip = {name for name in vars(env) if name in _STRUCTURE or name in _NOT_STATE or name.lstrip("_") in configured}
    return recorder.attributes(env, path, skip=skip, optional=_OPTIONAL)


def restore_layer(env: Any, state: Any, refiller: Refiller, path: str) -> None:
    """Bring this one layer back."""
    if _way(env) == "own":
        env.milepost_set_state(state)
    elif state is not None:
        refiller.attributes(env, state, path)


class Envs:
    """Let an environment stand in the state of an engine: ``state={"envs": Envs(env)}``.

    Takes a Gymnasium env, a ``SyncVectorEnv`` or a Stable-Baselines3 ``VecEnv``, with any wrappers.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._left_out: tuple[LeftOut, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the captured tree."""
        captured = capture(self.env)
        self._left_out = captured.left_out
        return captured.tree

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Bring the env back in place."""
        restore(self.env, state)

    def state_differences(self, saved: Any, /) -> list[Difference]:
        """Return where the layers differ."""
        return differences(self.env, saved)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what the last `state_dict` could not hold; empty where the env is captured exactly."""
        return self._left_out


def register_gymnasium() -> None:
    """Let Gymnasium's environments stand in an engine's state as they are."""
    import gymnasium

    register_component(gymnasium.Env, Envs)
    register_component(gymnasium.vector.VectorEnv, Envs)


def register_stable_baselines3() -> None:
    """Let Stable-Baselines3's vector environments stand in an engine's state as they are."""
    from stable_baselines3.common.vec_env import VecEnv

    register_component(VecEnv, Envs)


def _node(env: Any, recorder: Recorder, path: str, elsewhere: Collection[str]) -> dict[str, Any]:
    here = _join(path, type(env).__name__)
    others = class_name(env) in elsewhere
    inner = list(_inner(env))
    return {
        "class": class_name(env),
        "way": "elsewhere" if others else _way(env),
        "state": None if others else capture_layer(env, recorder, here),
        "inner": [_node(layer, recorder, name, elsewhere) for layer, name in zip(inner, _names(here, inner), strict=True)],
    }


def _restore(env: Any, tree: dict[str, Any], refiller: Refiller, path: str) -> None:
    here = _join(path, type(env).__name__)
    if tree["way"] != "elsewhere":
        restore_layer(env, tree["state"], refiller, here)
    inner = list(_inner(env))
    for layer, node, name in zip(inner, tree["inner"], _names(here, inner), strict=True):
        _restore(layer, node, refiller, name)


def _inner(env: Any) -> Iterator[Any]:
    attributes = vars(env)
    for name in ("env", "venv"):
        if hasattr(attributes.get(name), "reset"):
            yield attributes[name]
            return
    if isinstance(attributes.get("envs"), (list, tuple)):
        yield from attributes["envs"]


def _names(here: str, inner: list[Any]) -> list[str]:
    return [here] if len(inner) == 1 else [f"{here}[{index}]" for index in range(len(inner))]


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _way(env: Any) -> str:
    if hasattr(type(env), "milepost_get_state") and hasattr(type(env), "milepost_set_state"):
        return "own"
    name = class_name(env)
    plain = name in _registered or (name.startswith(_PLAIN_MODULES) and name not in _IN_WORKERS)
    return "plain" if plain else "none"


def _reason(env: Any) -> str:
    name = class_name(env)
    if name in _IN_WORKERS:
        return "its envs live in worker processes, which this version does not reach: use DummyVecEnv or SyncVectorEnv"
    if name.startswith(_NATIVE_MODULES):
        return "its state is in native memory, which this version does not capture"
    return "nobody knows its state: give it milepost_get_state and milepost_set_state, or milepost.envs.register_plain"


@cache
def _configured(cls: Any) -> frozenset[str]:
    """Return the names of the constructor's arguments: the script sets them again, and a changed setting wins.

    Only for the known classes, of which it was checked that none of them moves during an episode.
    """
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters)
