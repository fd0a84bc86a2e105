"""Capture an environment with all its wrappers, and bring it back in place, layer by layer.

Each layer is captured by the first way that applies to it, see `milepost.envs.ways`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from milepost.envs.layers import inner_of, join, names_within
from milepost.envs.plain import LeftOut, Recorder, Refiller, class_name
from milepost.envs.proof import prove, shown
from milepost.envs.spaces import held_by, space_differences, spaces_of
from milepost.envs.ways import way_named, way_of
from milepost.errors import MismatchError
from milepost.records import Difference
from milepost.state.kinds import register_component


@dataclass(frozen=True, slots=True)
class EnvState:
    """Hold an environment's state as a plain tree (arrays by reference), and what is not in it."""

    tree: dict[str, Any]
    left_out: tuple[LeftOut, ...]


def capture(env: Any, *, elsewhere: Collection[str] = ()) -> EnvState:
    """Return the state of ``env`` and everything in it. Layers of the classes ``elsewhere`` are saved by somebody else."""
    recorder = Recorder()
    return EnvState(_node(env, recorder, "", elsewhere), tuple(recorder.left_out))


def restore(env: Any, tree: dict[str, Any]) -> None:
    """Bring ``env`` back to a captured state, in place, and prove that it shows what it showed then.

    Raises `MismatchError`: kind ``env``, before anything is changed, if the layers or their spaces are not those that were
    captured; kind ``env-lies``, after it, if one shows something else.
    """
    if found := differences(env, tree):
        raise MismatchError("the saved environment is built differently", found, kind="env", hint="build the env as it was")
    _restore(env, tree, Refiller(), "")
    prove(env, tree)


def attach(env: Any) -> None:
    """Make every layer of ``env`` ready to be captured. Changes no bit of what the env does; called again it does nothing."""
    way_of(env).attach(env)
    for layer in inner_of(env):
        attach(layer)


def differences(env: Any, tree: dict[str, Any], path: str = "") -> list[Difference]:
    """Return where ``env`` is not what was captured: the classes of its layers, their spaces, the number of envs."""
    here = join(path, type(env).__name__)
    if tree["class"] != class_name(env):
        return [Difference(here, tree["class"], class_name(env), "env")]
    way = way_of(env)
    if tree["way"] not in ("elsewhere", "none", way.name):
        return [Difference(here, f"captured by way `{tree['way']}`", f"way `{way.name}`", "env")]
    saved, live = tree["inner"], list(inner_of(env))
    if len(saved) != len(live):
        return [Difference(join(here, "num_envs"), str(len(saved)), str(len(live)), "env")]
    found = way.differences(env, tree["state"], here) if tree["way"] == way.name and tree["state"] is not None else []
    for layer, node, name in zip(live, saved, names_within(here, live), strict=True):
        found += differences(layer, node, name)
    # What differs within is not told once more for every layer around it.
    return found or space_differences(env, tree, here)


def is_whole(tree: dict[str, Any]) -> bool:
    """Return whether every layer of a captured tree was captured. If not, the env must be reset after a restore."""
    way = way_named(tree["way"])
    return (way is None or way.whole(tree["state"])) and all(map(is_whole, tree["inner"]))


def describe(env: Any) -> str:
    """Return the layers of ``env`` in one line: ``DummyVecEnv<4 x Monitor<TimeLimit<CartPoleEnv>>>``."""
    elsewhere = way_of(env).within(env)
    inner = elsewhere or [describe(layer) for layer in inner_of(env)]
    name = type(env).__name__
    if not inner:
        identity = getattr(getattr(env, "spec", None), "id", None)
        return f"{name}({identity})" if identity else name
    count = f"{len(inner)} x " if elsewhere or isinstance(vars(env).get("envs"), (list, tuple)) else ""
    return f"{name}<{count}{inner[0]}>" if len(set(inner)) == 1 else f"{name}<{', '.join(inner)}>"


def capture_layer(env: Any, recorder: Recorder, path: str) -> Any:
    """Return the state of this one layer, or None if it cannot be captured."""
    return way_of(env).capture(env, recorder, path)


def restore_layer(env: Any, state: Any, refiller: Refiller, path: str) -> None:
    """Bring this one layer back."""
    if state is not None:
        way_of(env).restore(env, state, refiller, path)


class Envs:
    """Let an environment stand in the state of an engine: ``state={"envs": Envs(env)}``.

    Takes a Gymnasium env or vector env, or a Stable-Baselines3 ``VecEnv``, with any wrappers, in worker processes too.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        attach(env)
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
    here = join(path, type(env).__name__)
    others = class_name(env) in elsewhere
    inner = list(inner_of(env))
    return {
        "class": class_name(env),
        "spaces": spaces_of(env, inner),
        "way": "elsewhere" if others else way_of(env).name,
        "state": None if others else capture_layer(env, recorder, here),
        **({} if others else _space_generators(env, recorder, here)),
        **({} if others else shown(env)),
        "inner": [_node(layer, recorder, name, elsewhere) for layer, name in zip(inner, names_within(here, inner), strict=True)],
    }


def _space_generators(env: Any, recorder: Recorder, path: str) -> dict[str, Any]:
    """Return the generators of the layer's spaces that nobody has read by now.

    A loop that samples an action draws from them, and no env says so in a state of its own.
    """
    unread = {name: space for name, space in held_by(env).items() if not recorder.has_met(space)}
    found = {name: recorder.value(space, f"{path}.{name}") for name, space in unread.items()}
    return {"space_generators": found} if found else {}


def _restore(env: Any, tree: dict[str, Any], refiller: Refiller, path: str) -> None:
    here = join(path, type(env).__name__)
    if tree["way"] not in ("elsewhere", "none"):
        restore_layer(env, tree["state"], refiller, here)
    held = held_by(env)
    # After the layer, which may sample from its spaces while it is brought back.
    for name, saved in tree.get("space_generators", {}).items():
        refiller.value(saved, held.get(name), f"{here}.{name}")
    inner = list(inner_of(env))
    for layer, node, name in zip(inner, tree["inner"], names_within(here, inner), strict=True):
        _restore(layer, node, refiller, name)
