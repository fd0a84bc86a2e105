"""Know how a layer of an environment is captured: each takes the first way that fits it.

1. ``own``: its class has ``milepost_get_state()`` and ``milepost_set_state(state)``; they speak for this layer alone.
2. ``snapshot``: functions that were registered for its class speak for it.
3. ``ale``, ``mujoco``: it is a simulator of which it is known what its exact state is.
4. ``workers``: it is a vector env whose envs live in worker processes; each is captured there, by these ways.
5. ``plain``: its attributes, for classes known (or registered by `register_plain`) to hold nothing but data.
6. ``replay``: what it was told since its last reset, for classes known (or registered) to be made by that.
7. ``pickle``: where it was allowed, and its copy proves to be one.
8. ``none``: it is named in ``left_out``. It is never pickled: pickles of simulators are silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from milepost.envs.attributes import attributes_of
from milepost.envs.compare import first_difference
from milepost.envs.pickles import Pickled, again_pickled
from milepost.envs.plain import LeftOut, Recorder, Refiller, class_name
from milepost.envs.replayed import again_replayed
from milepost.envs.replaying import Replay
from milepost.envs.simulators import Ale, Mujoco
from milepost.envs.way import Way
from milepost.envs.workers import Workers
from milepost.records import Difference

_PLAIN_MODULES = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.toy_text.",
    "gymnasium.wrappers.",
    "gymnasium.vector.",
    "stable_baselines3.common.monitor",
    "stable_baselines3.common.vec_env.",
    "stable_baselines3.common.atari_wrappers",
    "stable_baselines3.common.envs.",
    "sb3_contrib.common.wrappers.",
    "sb3_contrib.common.envs.",
)
_NATIVE_MODULES = ("gymnasium.envs.mujoco", "ale_py")
_registered: set[str] = set()
_snapshotters: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {}


class Own(Way):
    """Let the layer speak for itself."""

    name = "own"

    def fits(self, env: Any) -> bool:
        """Return whether its class has both methods."""
        return hasattr(type(env), "milepost_get_state") and hasattr(type(env), "milepost_set_state")

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return what it says."""
        return _said(env.milepost_get_state(), recorder, path)

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:  # noqa: ARG002
        """Tell it what it said."""
        env.milepost_set_state(state)

    def unlike(self, env: Any, state: Any, path: str) -> Difference | None:
        """Ask it again; what it shows by ``milepost_observe`` has been compared already."""
        return None if hasattr(type(env), "milepost_observe") else _told(state, env.milepost_get_state(), path)


class Snapshot(Way):
    """Let functions speak that were registered for the class by `register_snapshotter`."""

    name = "snapshot"

    def fits(self, env: Any) -> bool:
        """Return whether exactly its class was registered."""
        return type(env) in _snapshotters

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return what the first of them says."""
        return _said(_snapshotters[type(env)][0](env), recorder, path)

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:  # noqa: ARG002
        """Tell it to the second."""
        _snapshotters[type(env)][1](env, state)

    def unlike(self, env: Any, state: Any, path: str) -> Difference | None:
        """Ask the first again."""
        return _told(state, _snapshotters[type(env)][0](env), path)


class Plain(Way):
    """Take the attributes of a class that is known to hold nothing but data."""

    name = "plain"

    def fits(self, env: Any) -> bool:
        """Return whether its class is known or registered."""
        name = class_name(env)
        return name in _registered or name.startswith(_PLAIN_MODULES)

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return its attributes."""
        return attributes_of(env, recorder, path, known=class_name(env) not in _registered)

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Overwrite its attributes."""
        refiller.attributes(env, state, path)


class Nowhere(Way):
    """Name the layer, and capture nothing of it."""

    name = "none"

    def fits(self, env: Any) -> bool:  # noqa: ARG002
        """Return True: somebody has to."""
        return True

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Say why there is nothing."""
        recorder.left_out.append(LeftOut(path, _reason(env)))

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Do nothing: there is nothing."""


WAYS: tuple[Way, ...] = (
    Own(),
    Snapshot(),
    Ale(),
    Mujoco(),
    Workers(),  # before plain, whose modules hold them too
    Plain(),
    Replay(),
    Pickled(),
    Nowhere(),
)
"""In the order in which they are asked."""


def way_of(env: Any) -> Way:
    """Return the first way that fits this layer."""
    return next(way for way in WAYS if way.fits(env))


def way_named(name: str) -> Way | None:
    """Return the way of that name, if this version has it."""
    return next((way for way in WAYS if way.name == name), None)


def register_snapshotter(cls: type, get: Callable[[Any], Any], put: Callable[[Any, Any], object]) -> None:
    """Let ``get(env)`` give the whole state of an env or wrapper of exactly ``cls``, and ``put(env, state)`` bring it back.

    For classes that are not yours to change; of a wrapper, the state of this layer alone. ``get`` returns a tree of numbers,
    text, bytes, arrays, lists and dicts, or None if there is no state to be had at this moment. It may return live arrays:
    they are copied. ``put`` changes the env in place, and brings generators back, too.
    """
    _snapshotters[cls] = (get, put)


def register_plain(cls: type) -> type:
    """Promise that the whole state of ``cls`` is its plain attributes: no native objects, nothing in modules or files.

    A class decorator. Attributes that are not plain are still found and reported.
    """
    _registered.add(f"{cls.__module__}.{cls.__qualname__}")
    return cls


def registrations() -> list[Callable[[], object]]:
    """Return calls that register what is registered here: for worker processes, which may not have run the same script."""
    return [
        partial(_know_as_plain, frozenset(_registered)),
        *(partial(register_snapshotter, cls, get, put) for cls, (get, put) in _snapshotters.items()),
        *again_replayed(),
        *again_pickled(),
    ]


def _know_as_plain(names: frozenset[str]) -> None:
    _registered.update(names)


def _said(state: Any, recorder: Recorder, path: str) -> Any:
    if state is None:
        recorder.left_out.append(LeftOut(path, "it gave None: no state of it can be had at this moment"))
    return state


def _told(state: Any, again: Any, path: str) -> Difference | None:
    return first_difference(Recorder().value(state, ""), Recorder().value(again, ""), f"{path} state")


def _reason(env: Any) -> str:
    name = class_name(env)
    if name.startswith(_NATIVE_MODULES):
        return "its state is in native memory, and it gives none: make it of single envs, in SyncVectorEnv or AsyncVectorEnv"
    return (
        "nobody knows its state: give its class milepost_get_state and milepost_set_state, or call register_snapshotter, "
        "register_plain, register_replayed or allow_pickle of milepost.envs, whichever is true of it"
    )
