"""Save what each rank has by itself: its random generators, its place in the data. Under a key of its rank, as one value.

DCP saves a value once, whichever ranks have one of that name; and it takes dicts and lists apart, and makes text of keys that
are numbers. What is here it neither merges nor takes apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.errors import MismatchError, UsageError
from milepost.pytorch.shards import Own
from milepost.records import Difference
from milepost.state.protocol import Stateful
from milepost.state.rng import Rng

KEY = "own"
"""What the state dict has under this key is each rank's own."""


def key_of_rank(rank: int) -> str:
    """Return the key of a rank."""
    return f"rank-{rank}"


def with_own(state: Mapping[str, Any], own: Mapping[str, Stateful] | None, rank: int) -> dict[str, Any]:
    """Return the state dict with what this rank has by itself. Raises `UsageError` for what has no state to give and take."""
    if own is None:
        return {**state}
    if KEY in state:
        raise UsageError(
            "the state dict has a key that stands for what each rank has by itself", kind="own-key", hint="rename it", key=KEY
        )
    for name, value in own.items():
        if not isinstance(value, Stateful) or isinstance(value, type):
            raise UsageError(
                "what a rank has by itself needs state_dict and load_state_dict",
                kind="not-stateful",
                hint="milepost.Rng() for random generators; a stateful data loader, or a small class of your own",
                name=name,
                type=type(value).__name__,
            )
    return {**state, KEY: {key_of_rank(rank): Own({name: value.state_dict() for name, value in own.items()})}}


def give_back(own: Mapping[str, Stateful], saved: Mapping[str, Any]) -> None:
    """Overwrite what this rank has by itself; random generators last. Raises `MismatchError` before anything is changed."""
    differences = [Difference(f"{KEY}/{name}", "nothing", "something", "missing") for name in own if name not in saved]
    differences += [Difference(f"{KEY}/{name}", "something", "nothing", "missing") for name in saved if name not in own]
    if differences:
        raise MismatchError("each rank has something else by itself than was saved", differences, kind="own")
    for name in sorted(own, key=lambda name: isinstance(own[name], Rng)):
        own[name].load_state_dict(saved[name])
