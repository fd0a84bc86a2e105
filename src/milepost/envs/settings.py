"""Tell what training has changed of an object's settings from what the script says, which wins."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field
from typing import Any

from milepost.envs import functions
from milepost.envs.likeness import attributes_held, is_seen_through
from milepost.envs.plain import ABSENT, Recorder, is_code, same


@dataclass(slots=True)
class _Read:
    """Be what an object's settings are at one moment."""

    data: dict[str, Any] = field(default_factory=dict)
    looks: dict[str, Any] = field(default_factory=dict)
    """What is inside an object that cannot come back: only whether it changes is of interest."""
    objects: dict[str, int] = field(default_factory=dict)
    """Which object everything else is."""


_first_seen: dict[int, tuple[weakref.ref[Any], _Read]] = {}


def changed_settings(owner: Any, names: frozenset[str], recorder: Recorder | None = None, path: str = "") -> dict[str, Any]:
    """Return those of the attributes ``names`` which training has changed since this process first asked, as plain trees.

    What the script sets, a changed script sets otherwise, and the script wins. What a callback has changed since (a
    curriculum that lowers ``ent_coef``) is progress, and comes back: also where it was changed in the ``learn()`` before.
    ``recorder`` is told what has changed, or may have, and cannot be saved.
    """
    now = _read(owner, names, path, recorder)
    key = id(owner)
    if key not in _first_seen or _first_seen[key][0]() is not owner:
        _first_seen[key] = weakref.ref(owner, lambda _: _first_seen.pop(key, None)), copy.deepcopy(now)
    before = _first_seen[key][1]
    if recorder is not None:
        for name in now.objects:
            if now.objects[name] != before.objects.get(name):
                recorder.leave(f"{path}.{name}", "training has set it to something which only the script can make")
            elif name in now.looks and not same(now.looks[name], before.looks.get(name)):
                recorder.leave(f"{path}.{name}", f"a `{type(vars(owner)[name]).__name__}` is not plain data, and changes")
    # What a function holds is no setting: the script makes it anew, as it was in the beginning.
    held = {name: value for name, value in now.data.items() if functions.is_function(value)}
    return held | {name: value for name, value in now.data.items() if not same(before.data.get(name, ABSENT), value)}


def _read(owner: Any, names: frozenset[str], path: str, recorder: Recorder | None) -> _Read:
    """Return what the settings are; tell ``recorder`` what may change unseen."""
    read = _Read()
    for name, value in vars(owner).items():
        if name not in names:
            continue
        reader = Recorder()
        found = functions.record(value, reader, f"{path}.{name}") if is_code(value) else reader.value(value, f"{path}.{name}")
        if is_code(value) or found is ABSENT:
            read.objects[name] = id(value)
        if found is not ABSENT and (found is not None or value is None):
            read.data[name] = found
        if recorder is None or not _holds_strangers(value):
            continue
        if (look := _look_into(value)) is not None:
            read.looks[name] = look
        else:
            recorder.left_out += reader.left_out
    return read


def _holds_strangers(value: Any) -> bool:
    """Return whether something in it may change, is not plain, and belongs to nobody who saves it."""
    if isinstance(value, (dict, list, tuple)):
        return any(map(_holds_strangers, value.values() if isinstance(value, dict) else value))
    return functions.may_change(value) and (is_code(value) or Recorder().value(value, "") is ABSENT)


def _look_into(value: Any) -> dict[str, Any] | None:
    """Return all that an object holds, where that is plain attributes and no memory besides; else None."""
    if is_code(value) or isinstance(value, (dict, list, tuple)) or not is_seen_through(type(value)):
        return None
    looker = Recorder()
    found = looker.items(attributes_held(value), "")
    return None if looker.left_out else found
