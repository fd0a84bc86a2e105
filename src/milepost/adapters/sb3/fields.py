"""Know which arrays of a replay buffer are written row by row, at its cursor, and nowhere else."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer

from milepost.errors import UsageError
from milepost.state.kinds import leaf_kind, load_edges

DECLARED = "milepost_rows"
"""A class attribute: the names of further arrays that its ``add`` writes at ``pos`` only, or None if any row may change."""

_ROW_WISE = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")
"""What Stable-Baselines3's own classes write so, HER's episode marks included: `milepost.adapters.sb3.counting` follows these."""


def is_row_wise(buffer: object) -> bool:
    """Return whether the buffer's new rows can be told from its old ones."""
    return isinstance(buffer, ReplayBuffer) and getattr(buffer, DECLARED, ()) is not None and bool(fields(buffer))


def trusts_its_add(buffer: ReplayBuffer) -> bool:
    """Return whether an ``add`` that leaves the cursor where it was has written nothing."""
    own = type(buffer).add.__module__.partition(".")[0] in ("stable_baselines3", "sb3_contrib")
    return own or getattr(buffer, DECLARED, None) is not None


def fields(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return the arrays that are written row by row: ``observations``, or ``observations/key`` where there are several."""
    load_edges()
    found: dict[str, Any] = {}
    declared = tuple(getattr(buffer, DECLARED, None) or ())
    for name in dict.fromkeys((*_ROW_WISE, *declared)):
        value = vars(buffer).get(name)
        parts = {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        if all(_has_rows(part, buffer.buffer_size) for part in parts.values()):
            found |= parts
        elif name in declared:
            hint = "name arrays whose first axis has buffer_size rows"
            what = f"an attribute named in {DECLARED} is no array of rows"
            raise UsageError(what, kind="replay-rows", hint=hint, attribute=name, rows=buffer.buffer_size)
    return found


def attributes_of(names: Any) -> set[str]:
    """Return the buffer's attributes that these fields are, or are in."""
    return {name.partition("/")[0] for name in names}


def _has_rows(value: Any, rows: int) -> bool:
    known = leaf_kind(type(value)) is not None and not getattr(value.dtype, "hasobject", False)
    return known and value.ndim > 0 and value.shape[0] == rows
