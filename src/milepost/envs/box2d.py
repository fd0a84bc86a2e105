"""Know Gymnasium's Box2D envs: their state lies in native memory that nobody can read, but what they are told makes it.

`LunarLander` makes a new world in every reset. `CarRacing` keeps its world, but nothing in it touches: its tiles are
sensors, its wheels hang on joints, and no order of contacts reaches a float. `BipedalWalker` keeps its world, and the order
of contacts that it is left with moves the next episode's last bits; with a new world in each reset it is exact, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from milepost.envs.inplace import InPlace, standing_in
from milepost.envs.plain import class_name
from milepost.envs.replayed import Replayed

_PLACE = "gymnasium.envs.box2d."


class FreshReset(InPlace):
    """Reset an env in a new world each time."""

    used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        env = self.owner
        renew_world(env)
        self.used = True
        return self.call(env)(*args, **kwargs)


def freshen(env: Any) -> None:
    """Let every reset of ``env`` make a new world, whoever calls it."""
    if _fresh_reset(env) is None:
        FreshReset(env, "reset").put()


def renew_world(env: Any) -> None:
    """Take down what stands in the old world, and go to a new one."""
    env._destroy()
    env.world = type(env.world)()


def keeps_its_world(env: Any) -> bool:
    """Return whether ``env`` is of a class whose world outlives a reset, and whose next episode it changes."""
    return class_name(env) == _WALKER


def _fresh_reset(env: Any) -> FreshReset | None:
    return next((found for found in standing_in(env, "reset") if isinstance(found, FreshReset)), None)


def _stale(env: Any) -> str:
    if _fresh_reset(env) is not None:
        return ""
    return "its Box2D world outlives a reset, and changes the next episode: wrap it in milepost.envs.FreshWorld"


def _sibling(env: Any) -> Any:
    """Return an env made with the same arguments, if everything that a reset needs of this one comes from them."""
    fresh = _fresh_reset(env)
    replaced = any(callable(value) and hasattr(type(env), name) and _is_strange(value) for name, value in vars(env).items())
    if replaced or env.render_mode == "human" or (fresh is not None and not fresh.used):
        return None
    made = type(env)(*env._ezpickle_args, **env._ezpickle_kwargs)
    if fresh is not None:
        freshen(made)
    return made


def _is_strange(method: Any) -> bool:
    """Return whether what stands in for a method of an env is not, all the way down, milepost's own."""
    while isinstance(method, InPlace):
        method = method.inner
    return method is not None


def _bodies(env: Any, bodies: Iterable[Any]) -> Any:
    """Return the world's gravity (2), and per body its place (2), angle, velocity (2), angular velocity, mass, if it is awake."""
    there = [body for body in bodies if body is not None]
    read = [[*body.position, body.angle, *body.linearVelocity, body.angularVelocity, body.mass, body.awake] for body in there]
    return {"gravity": tuple(env.world.gravity), "bodies": np.array(read, np.float64)}


def _plain(env: Any, *names: str) -> dict[str, Any]:
    return {name: vars(env).get(name) for name in names}


def _lander(env: Any) -> Any:
    legs = vars(env).get("legs", [])
    return {
        **_bodies(env, [env.lander, *legs]),
        "legs": [leg.ground_contact for leg in legs],
        **_plain(env, "prev_shaping", "game_over", "wind_idx", "torque_idx"),
    }


def _walker(env: Any) -> Any:
    legs = vars(env).get("legs", [])
    return {
        **_bodies(env, [env.hull, *legs]),
        "legs": [leg.ground_contact for leg in legs[1::2]],
        **_plain(env, "prev_shaping", "game_over", "scroll"),
    }


def _car(env: Any) -> Any:
    wheels = env.car.wheels if env.car else []
    return {
        **_bodies(env, [env.car.hull, *wheels] if env.car else []),
        "wheels": np.array([[wheel.gas, wheel.brake, wheel.steer, wheel.phase, wheel.omega] for wheel in wheels], np.float64),
        **_plain(env, "reward", "prev_reward", "tile_visited_count", "t", "new_lap"),
    }


_WALKER = f"{_PLACE}bipedal_walker.BipedalWalker"
_KINDS = {
    f"{_PLACE}lunar_lander.LunarLander": Replayed(
        settings=("continuous", "gravity", "enable_wind", "wind_power", "turbulence_power", "render_mode"),
        pulse="prev_shaping",
        rendering_moves=True,
        witness=_lander,
        begun=lambda env: env.lander is not None,
        sibling=_sibling,
    ),
    f"{_PLACE}car_racing.CarRacing": Replayed(
        carries=("road_color", "bg_color", "grass_color"),
        settings=("continuous", "domain_randomize", "lap_complete_percent"),
        pulse="t",
        witness=_car,
        begun=lambda env: env.car is not None,
        sibling=_sibling,
    ),
    _WALKER: Replayed(
        settings=("hardcore",),
        pulse="prev_shaping",
        rendering_moves=True,
        witness=_walker,
        begun=lambda env: env.hull is not None,
        sibling=_sibling,
        refused=_stale,
    ),
}


def known(env: Any) -> Replayed | None:
    """Return what is known about exactly the class of ``env``."""
    return _KINDS.get(class_name(env))
