"""Say what each rank gets of the places in the data that other ranks have saved, when there are more of them or fewer. A14. Pure.

A rank's place counts its own batches. Where ranks share an epoch between them (``DistributedSampler``), ten batches on each of
two ranks are not ten on each of four: their places are equal, and taken over they would pass twenty batches over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from milepost.errors import CorruptError
from milepost.pytorch.recover.data_position import Place, Position, read_position
from milepost.pytorch.recover.generators import Orders


@dataclass(frozen=True, slots=True)
class Reshared:
    """Say what each rank gets."""

    states: tuple[Any, ...]
    """By rank; None where it gets nothing, and its loader begins anew."""
    inexact: tuple[str, ...] = ()
    """Why data comes twice or not at all, for `RecoverInfo.inexact`."""


def reshare(states: Sequence[Any], ranks: int, *, shares: int | None = None) -> Reshared:
    """Return what each of ``ranks`` ranks gets of the states that were saved, by rank.

    As many ranks get what they have saved. Others get the one state of all, if it is one and the ranks do not share epochs;
    where they do, the beginning of the epoch that they were in. ``shares`` is `epochs.shares_of` the loader that is here: what
    a loader saves without a `TrainedFrontier` does not say it.
    """
    if len(states) == ranks:
        return Reshared(tuple(states))
    kept = f"the data was saved by {len(states)} ranks and is loaded by {ranks}"
    positions = _positions(states)
    if positions and any(one.shares for one in positions):
        return _from_the_epoch(positions, ranks, kept)
    if shares:
        return Reshared((None,) * ranks, (f"{kept}, which share each epoch: it begins anew",))
    if states and all(same(states[0], one) for one in states[1:]):
        return Reshared((states[0],) * ranks)
    return Reshared((None,) * ranks, (f"{kept}, and each rank was at a place of its own: it begins anew",))


def _positions(states: Sequence[Any]) -> list[Position]:
    """Return the places, if all of the states are of a `TrainedFrontier`."""
    try:
        return [read_position(state) for state in states]
    except CorruptError:
        return []


def _from_the_epoch(positions: Sequence[Position], ranks: int, kept: str) -> Reshared:
    """Begin the epoch anew that the slowest rank was in; ordinals go on behind all that were given out."""
    epoch = min(one.place.epoch for one in positions)
    dropped: Counter[str] = Counter()
    for one in positions:
        dropped.update(one.dropped)
    start = max(_behind(one) for one in positions)
    state = Position(start, Place(epoch, 0), None, Orders(), False, (), 0, {}, None, None, None)
    first = Position(start, Place(epoch, 0), None, Orders(), False, (), 0, dropped, None, None, None)
    again = f"{kept}, which share each epoch: epoch {epoch} begins anew, and some of it is trained twice"
    return Reshared((first.as_state(), *(state.as_state() for _ in range(ranks - 1))), (again,))


def _behind(position: Position) -> int:
    return max(position.ordinal + position.open, position.beyond[-1][1] if position.beyond else 0)


def same(one: Any, other: Any) -> bool:
    """Return whether two states are the same, bit for bit: containers of plain values, arrays and tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape and one.device == other.device
        return alike and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other) or (one != one and other != other)  # a NaN is what it was


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)
