"""Save a replay buffer's new rows, and bring all of them back into its own arrays.

The tree is ``{"rows": Rows, "others": {...}}``: the transitions, and whatever else the buffer holds. Generations of before
there were `Rows`, and buffers whose rows may change anywhere, have all attributes in one dict, arrays whole.
"""

from __future__ import annotations

from typing import Any

from milepost.adapters.sb3 import subject as about
from milepost.adapters.sb3.counting import counted
from milepost.adapters.sb3.fields import attributes_of, is_row_wise
from milepost.adapters.sb3.subject import Subject
from milepost.envs.plain import Recorder, Refiller
from milepost.records import Difference, LeafSpec
from milepost.state.kinds import leaf_kind
from milepost.state.rows import Rows

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
    if not is_row_wise(buffer):
        return recorder.attributes(buffer, "replay_buffer", skip=skip)
    rows = counted(buffer).rows
    return {"rows": rows, "others": recorder.attributes(buffer, "replay_buffer", skip=skip | attributes_of(rows.arrays))}


def restore(subject: Subject, state: Any) -> None:
    """Overwrite the buffer. The rows of a generation that has some are in its arrays already, and in its count."""
    buffer = _buffer(subject)
    live = counted_or_none(buffer)
    rows, others = _taken_apart(state)
    if rows is not None and live is not None and rows is live.rows:
        live.clear_beyond(buffer)
    elif rows is not None:
        others = {**_by_attribute(rows.arrays), **others}
    Refiller().attributes(buffer, {name: _into(vars(buffer).get(name), value) for name, value in others.items()}, "replay_buffer")
    if live is not None:
        (live.brought_back if rows is live.rows else live.recount)(buffer)
