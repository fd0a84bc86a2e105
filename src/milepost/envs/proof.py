"""Prove, after a restore and before training goes on, that an environment shows what it showed when it was saved.

What a layer shows comes from its class's own ``milepost_observe()``, which changes nothing and draws nothing, or from the way
that captured it: the observation of a simulator, read from its restored memory. Beyond that a class that speaks for itself is
asked for its state once more, and a simulator for its memory: it must be what it was just given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from milepost.envs.compare import first_difference
from milepost.envs.layers import inner_of, join, names_within
from milepost.envs.plain import ABSENT, Recorder
from milepost.envs.ways import way_of
from milepost.errors import MismatchError
from milepost.records import Difference


def shown(env: Any) -> dict[str, Any]:
    """Return what this layer shows, to be saved with its state; nothing if nobody knows."""
    own = hasattr(type(env), "milepost_observe")
    found = env.milepost_observe() if own else way_of(env).observed(env)
    tree = ABSENT if found is ABSENT else Recorder().value(found, "observed")
    return {} if tree is ABSENT else {"observed": tree}


def prove(env: Any, tree: dict[str, Any]) -> None:
    """Compare what every layer shows now with what it showed when ``tree`` was captured.

    Raises `MismatchError` (kind ``env-lies``) that names each layer which shows something else, and the first element of it.
    """
    if found := list(_lies(env, tree, "")):
        message = "an environment shows something else than when it was saved"
        hint = (
            "something it holds is neither saved nor made anew: name it in milepost_get_state and milepost_set_state, "
            "or in carries= of register_replayed"
        )
        raise MismatchError(message, found, kind="env-lies", hint=hint)


def _lies(env: Any, tree: dict[str, Any], path: str) -> Iterator[Difference]:
    here = join(path, type(env).__name__)
    inner = list(inner_of(env))
    for layer, node, name in zip(inner, tree["inner"], names_within(here, inner), strict=True):
        yield from _lies(layer, node, name)
    if tree["way"] in ("none", "elsewhere") or tree["state"] is None:
        return
    seen = None
    if "observed" in tree:
        # A class that has lost its milepost_observe since then proves nothing, and contradicts nothing.
        seen = first_difference(tree["observed"], shown(env).get("observed", tree["observed"]), f"{here} observation")
    if (found := seen or way_of(env).unlike(env, tree["state"], here)) is not None:
        yield found
