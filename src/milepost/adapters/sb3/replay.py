"""Save a replay buffer's new rows, and bring all of them back into its own arrays.

The tree is ``{"rows": Rows, "others": {...}}``: the transitions, and whatever else the buffer holds; with HER's infos, where
they are kept, as ``"infos": Items``. Generations of before there were `Rows`, and buffers whose rows may change anywhere,
have all attributes in one dict, arrays whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3 import HerReplayBuffer

from milepost.adapters.sb3 import subject as about
from milepost.adapters.sb3.counting import counted, counting
from milepost.adapters.sb3.fields import attributes_of, fields, is_row_wise
from milepost.adapters.sb3.infos import put_back
from milepost.adapters.sb3.subject import Subject
from milepost.envs.plain import Recorder, Refiller
from milepost.envs.settings import changed_settings
from milepost.records import Difference, LeafSpec
from milepost.state.kinds import leaf_kind

_NOT_STATE = {"buffer_size", "n_envs", "obs_shape", "action_dim", "observation_space", "action_space", "env", "add"}


def begin(subject: Subject) -> None:
    """Begin to count the rows of the buffer, or go on with it."""
    buffer = _buffer(subject)
    if is_row_wise(buffer):
        # learn() itself may have ended the episode at the cursor, before it told any callback.
        counted(buffer).touch_last()


def capture(subject: Subject, recorder: Recorder) -> Any:
    """Return the buffer's tree; its arrays by reference."""
    buffer = _buffer(subject)
    skip = about.configured(buffer) | _NOT_STATE
    annealed = changed_settings(buffer, about.configured(buffer) - _NOT_STATE, recorder, "replay_buffer")
    if not is_row_wise(buffer):
        return recorder.attributes(buffer, "replay_buffer", skip=skip) | annealed
    tracked = counted(buffer)
    skip |= attributes_of(tracked.rows.arrays) | {"infos"}
    tree = {"rows": tracked.rows, "others": recorder.attributes(buffer, "replay_buffer", skip=skip) | annealed}
    if tracked.infos is not None:
        tree["infos"] = tracked.infos.items
        recorder.left_out += tracked.infos.left_out
    return tree


def restore(subject: Subject, state: Any) -> None:
    """Overwrite the buffer. The rows of a generation that has some are in its arrays already, and in its count."""
    buffer = _buffer(subject)
    live = counting(buffer) if is_row_wise(buffer) else None
    rows, others = _taken_apart(state)
    if rows is not None and live is not None and rows is live.rows:
        live.clear_beyond(buffer)
    elif rows is not None:
        others = {**_by_attribute(rows.arrays), **others}
    Refiller().attributes(buffer, {name: _into(vars(buffer).get(name), value) for name, value in others.items()}, "replay_buffer")
    if "infos" in state and rows is not None and hasattr(buffer, "infos"):
        put_back(buffer, state["infos"])
    if live is not None:
        (live.brought_back if rows is live.rows else live.recount)(buffer)


def differences(subject: Subject, saved: Any) -> list[Difference]:
    """Return what does not fit: another capacity, number of environments, shape or dtype, or other arrays. Values are data.

    So is, beside rows, how long an array is: a batch's indices, say.
    """
    buffer = _buffer(subject)
    here, there = (_described(state, about.configured(buffer)) for state in (capture(subject, Recorder()), saved))
    found = [Difference(name, _text(there[name]), "missing", "missing") for name in _only_in(there, here)]
    found += [Difference(name, "missing", _text(here[name]), "unexpected") for name in _only_in(here, there)]
    data = here.keys() - fields(buffer).keys() if is_row_wise(buffer) else set()
    for name, one in there.items():
        other = here.get(name)
        if isinstance(one, LeafSpec) and isinstance(other, LeafSpec):
            found += _unlike(name, one, other, first_axis=name not in data)
    return found


def _unlike(name: str, saved: LeafSpec, live: LeafSpec, *, first_axis: bool) -> list[Difference]:
    of_any_length = not first_axis and len(saved.shape) == len(live.shape) > 0 and saved.shape[1:] == live.shape[1:]
    shape = saved.shape == live.shape or of_any_length
    what = "type" if saved.kind != live.kind else "shape" if not shape else "dtype" if saved.dtype != live.dtype else ""
    return [Difference(name, str(saved), str(live), what)] if what else []


def end_last_episode(buffer: Any) -> None:
    """End the episode at the cursor: what is added next is of another one."""
    if isinstance(buffer, HerReplayBuffer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says what we want it to do
            buffer.truncate_last_trajectory()
    else:
        # The transition before has no successor now; a buffer that finds it by position must not look for it.
        last = (buffer.pos - 1) % buffer.buffer_size
        (buffer.dones if buffer.optimize_memory_usage else buffer.timeouts)[last] = True
    if is_row_wise(buffer):
        counted(buffer).touch_last()


def _buffer(subject: Subject) -> Any:
    return subject.model.replay_buffer  # type: ignore[attr-defined]


def _taken_apart(state: Any) -> tuple[Any, dict[str, Any]]:
    """Return the rows, or None where every array is whole, and the attributes."""
    return (state["rows"], state["others"]) if state.keys() - {"infos"} == {"rows", "others"} else (None, state)


def _by_attribute(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays as the buffer holds them: ``observations/key`` is an item of its ``observations``."""
    found: dict[str, Any] = {}
    for name, array in named.items():
        attribute, _, key = name.partition("/")
        if key:
            found.setdefault(attribute, {})[key] = array
        else:
            found[attribute] = array
    return found


def _into(live: Any, saved: Any) -> Any:
    """Copy arrays into the live ones, which may be as large as the machine, and return those."""
    if isinstance(live, dict) and isinstance(saved, dict) and live.keys() == saved.keys():
        return {name: _into(live[name], saved[name]) for name in live}
    if isinstance(live, np.ndarray) and isinstance(saved, np.ndarray) and live.shape == saved.shape and live.dtype == saved.dtype:
        if live is not saved:
            live[...] = saved
        return live
    return saved


def _described(state: Any, settings: frozenset[str]) -> dict[str, Any]:
    """Return every array's spec, and every other attribute but ``settings``, by name."""
    rows, others = _taken_apart(state)
    named = {} if rows is None else dict(rows.arrays)
    return _specs({**named, **{name: value for name, value in others.items() if name not in settings}}, "")


def _specs(value: Any, path: str) -> dict[str, Any]:
    kind = leaf_kind(type(value))
    if kind is not None:
        return {path: kind.describe(value, path)}
    if not isinstance(value, dict) or not value or not all(isinstance(key, str) for key in value):
        return {path: value}
    joint = f"{path}/" if path else ""
    return {name: found for key, item in value.items() for name, found in _specs(item, f"{joint}{key}").items()}


def _only_in(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of what only one side has. Where there is nothing yet, None or an empty dict, anything may come."""

    def is_nothing(value: Any) -> bool:
        return value is None or (isinstance(value, dict) and not value)

    open_ = tuple(f"{name}/" for name, value in other.items() if is_nothing(value))
    return [name for name in one if name not in other and not is_nothing(one[name]) and not name.startswith(open_)]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, LeafSpec) else type(value).__name__
