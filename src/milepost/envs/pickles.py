"""Capture a layer by pickling it: only where its class was allowed to be, and only when the copy proves to be one.

Simulators pickle without a word and come back wrong. So each capture makes the copy that a resume would make, and compares it
with the live layer. Spaces, and the layers within, are not in the pickle: others hold them, and they have their own states.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from milepost.envs.layers import all_within
from milepost.envs.likeness import unlike
from milepost.envs.plain import LeftOut, Recorder, Refiller, is_space
from milepost.envs.way import Way
from milepost.errors import UsageError
from milepost.state.kinds import global_rngs
from milepost.state.opaque import pickled_within, unpickled_within

_KEPT = ("env", "venv", "envs", "spec", "_cached_spec")
_allowed: set[type] = set()


def allow_pickle(cls: type) -> type:
    """Allow that envs or wrappers of exactly ``cls`` are saved as pickles, and trust those that a checkpoint holds.

    A class decorator, for want of anything better: at each save the copy that a resume would make is compared with the live
    object, and where it differs, or cannot be compared, the layer is named in ``left_out`` and nothing of it is saved. Reading
    a pickle runs its code: allow it only for run roots whose writers you trust.
    """
    _allowed.add(cls)
    return cls


def again_pickled() -> list[Callable[[], object]]:
    """Return the calls that allow again what is allowed here."""
    return [partial(allow_pickle, cls) for cls in _allowed]


class Pickled(Way):
    """Pickle a layer whose class was allowed to be."""

    name = "pickle"

    def fits(self, env: Any) -> bool:
        """Return whether exactly its class was allowed."""
        return type(env) in _allowed

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return the pickle; None if its copy is not like the layer."""
        kept = _kept(env)
        try:
            data = pickled_within(env, kept, path)
            reason = _remakes_itself(env) or _without_a_draw(lambda: _unlike(env, data, kept, path))
        except UsageError as error:
            reason = f"{error.message}: {error.facts['cause']}"
        if reason:
            recorder.left_out.append(LeftOut(path, reason))
            return None
        return {"pickle": np.frombuffer(data, np.uint8)}

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:  # noqa: ARG002
        """Give the live object everything that the copy holds."""
        copy = unpickled_within(state["pickle"].tobytes(), _kept(env), path)
        vars(env).clear()
        vars(env).update(vars(copy))


def _kept(env: Any) -> dict[str, object]:
    """Return, by name, what is not of the layer's own: its spaces, and the layers within."""
    kept = {name: value for name, value in vars(env).items() if is_space(value) or (name in _KEPT and value is not None)}
    return {**kept, **{f"layer {number}": layer for number, layer in enumerate(all_within(env))}}


def _remakes_itself(env: Any) -> str | None:
    ways = [cls for cls in type(env).__mro__ if "__getstate__" in vars(cls) or "__reduce__" in vars(cls)]
    if ways and ways[0].__name__ == "EzPickle":
        return "its class is an `EzPickle`: the pickle holds what it was made from, and not its state"
    return None


def _unlike(env: Any, data: bytes, kept: dict[str, object], path: str) -> str | None:
    found = unlike(env, unpickled_within(data, kept, path), kept.values(), path)
    return found and f"the copy that its pickle makes is not like it: {found}"


def _without_a_draw(work: Any) -> Any:
    """Call ``work``; what the process's generators have given meanwhile, they will give once more."""
    before = {name: generator.get() for name, generator in global_rngs().items()}
    try:
        return work()
    finally:
        for name, state in before.items():
            if state is not None:
                global_rngs()[name].set(state)
