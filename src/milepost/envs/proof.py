"""Prove, after a restore and before training goes on, that an environment shows what it showed when it was saved.

What a layer shows comes from its class's own ``milepost_observe()``, which changes nothing and draws nothing, or from the way
that captured it: the observation of a simulator, read from its restored memory. A class that speaks for itself and shows nothing
is asked for its state once more, which must be the one it was just given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from milepost.envs.layers import inner_of, join, names_within
from milepost.envs.plain import ABSENT, Recorder, is_tensor, same
from milepost.envs.ways import way_of
from milepost.errors import MismatchError
from milepost.records import Difference

_SPEAKING = ("own", "snapshot")
_LONGEST = 120


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
        hint = "something it holds is neither saved nor made anew: name it in milepost_get_state and milepost_set_state"
        raise MismatchError(message, found, kind="env-lies", hint=hint)


def first_difference(saved: Any, live: Any, path: str) -> Difference | None:
    """Return the first element in which two recorded trees are not the same bits, and None if there is none."""
    if is_tensor(saved) and is_tensor(live):
        saved, live = saved.detach().cpu().numpy(), live.detach().cpu().numpy()
    if type(saved) is not type(live):
        return _difference(path, saved, live)
    if isinstance(saved, dict):
        if list(saved) != list(live):
            return Difference(path, f"keys {_short(list(saved))}", f"keys {_short(list(live))}", "env")
        return _first((saved[key], live[key], f"{path}[{key!r}]") for key in saved)
    if isinstance(saved, (list, tuple)):
        if len(saved) != len(live):
            return Difference(path, f"{len(saved)} items", f"{len(live)} items", "env")
        return _first((one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(saved, live, strict=True)))
    if isinstance(saved, np.ndarray):
        return _array_difference(saved, live, path)
    return None if same(saved, live) else _difference(path, saved, live)


def _lies(env: Any, tree: dict[str, Any], path: str) -> Iterator[Difference]:
    here = join(path, type(env).__name__)
    inner = list(inner_of(env))
    for layer, node, name in zip(inner, tree["inner"], names_within(here, inner), strict=True):
        yield from _lies(layer, node, name)
    if tree["way"] in ("none", "elsewhere") or tree["state"] is None:
        return
    found = None
    if "observed" in tree:
        # A class that has lost its milepost_observe since proves nothing, and contradicts nothing.
        found = first_difference(tree["observed"], shown(env).get("observed", tree["observed"]), f"{here} observation")
    elif tree["way"] in _SPEAKING:
        said = way_of(env).capture(env, Recorder(), here)
        found = first_difference(Recorder().value(tree["state"], ""), Recorder().value(said, ""), f"{here} state")
    if found is not None:
        yield found


def _first(pairs: Iterator[tuple[Any, Any, str]]) -> Difference | None:
    return next((found for one, other, path in pairs if (found := first_difference(one, other, path)) is not None), None)


def _array_difference(saved: Any, live: Any, path: str) -> Difference | None:
    if saved.dtype != live.dtype or saved.shape != live.shape:
        return Difference(path, f"{saved.dtype}{list(saved.shape)}", f"{live.dtype}{list(live.shape)}", "env")
    if saved.dtype.itemsize == 0 or saved.tobytes() == live.tobytes():
        return None
    bits = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(saved.size, -1) for array in (saved, live))
    first = int(np.flatnonzero((next(bits) != next(bits)).any(axis=1))[0])
    place = ", ".join(str(index) for index in np.unravel_index(first, saved.shape))
    return _difference(f"{path}[{place}]" if saved.ndim else path, saved.reshape(-1)[first], live.reshape(-1)[first])


def _difference(path: str, saved: Any, live: Any) -> Difference:
    one, other = _short(saved), _short(live)
    if one == other:
        one, other = (f"{text} ({_bits(value)})" for text, value in ((one, saved), (other, live)))
    return Difference(path, one, other, "env")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _bits(value: Any) -> str:
    return f"0x{value.tobytes().hex()}" if isinstance(value, np.generic) else type(value).__name__
