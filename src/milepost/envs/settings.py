"""Tell what training has changed of an object's settings from what the script says, which wins."""

from __future__ import annotations

import copy
import weakref
from typing import Any

from milepost.envs import functions
from milepost.envs.plain import ABSENT, Recorder, is_code, same

_first_seen: dict[int, tuple[weakref.ref[Any], dict[str, Any], dict[str, int]]] = {}


def changed_settings(owner: Any, names: frozenset[str], recorder: Recorder | None = None, path: str = "") -> dict[str, Any]:
    """Return those of the attributes ``names`` which training has changed since this process first asked, as plain trees.

    What the script sets, a changed script sets otherwise, and the script wins. What a callback has changed since (a
    curriculum that lowers ``ent_coef``) is progress, and comes back: also where it was changed in the ``learn()`` before.
    ``recorder`` is told what may have changed and cannot be saved.
    """
    now, others = _read(owner, names, path, recorder)
    key = id(owner)
    if key not in _first_seen or _first_seen[key][0]() is not owner:
        forget = weakref.ref(owner, lambda _: _first_seen.pop(key, None))
        _first_seen[key] = forget, copy.deepcopy(now), others
    _, before, strangers = _first_seen[key]
    if recorder is not None:
        for name in others:
            if others[name] != strangers.get(name):
                recorder.leave(f"{path}.{name}", "training has set it to something which only the script can make")
    return {name: value for name, value in now.items() if not same(before.get(name, ABSENT), value)}


def _read(owner: Any, names: frozenset[str], path: str, recorder: Recorder | None) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what is data, and of everything else which object it is; name what may change unseen."""
    data: dict[str, Any] = {}
    others: dict[str, int] = {}
    for name, value in vars(owner).items():
        if name not in names:
            continue
        reader = Recorder()
        found = functions.record(value, reader, f"{path}.{name}") if is_code(value) else reader.value(value, f"{path}.{name}")
        if is_code(value) or found is ABSENT:
            others[name] = id(value)
        if found is not ABSENT and (found is not None or value is None):
            data[name] = found
        if recorder is not None and _holds_strangers(value):
            recorder.left_out += reader.left_out
    return data, others


def _holds_strangers(value: Any) -> bool:
    """Return whether something in it may change, is not plain, and belongs to nobody who saves it."""
    if isinstance(value, (dict, list, tuple)):
        return any(map(_holds_strangers, value.values() if isinstance(value, dict) else value))
    return functions.may_change(value) and (is_code(value) or Recorder().value(value, "") is ABSENT)
