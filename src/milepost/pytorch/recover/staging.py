"""Copy engines' tensors into host memory that is kept, so that they can be written while training changes them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

from milepost.engine.arena import pages
from milepost.errors import UsageError
from milepost.pytorch.export.gathering import Memory, memory_for, place
from milepost.pytorch.leaves import TensorKind
from milepost.pytorch.recover.engines import SaveMode, TrainEngine
from milepost.pytorch.recover.models import model_state

log = logging.getLogger("milepost")

_TENSORS = TensorKind()
Flat = Mapping[str, torch.Tensor]
"""This rank's part of each tensor, by DCP's names."""


def flat_tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return this rank's part of each tensor of a state dict, by the names that DCP gives them."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({**state})
    return {fqn: _part(value) for fqn, value in planner.state_dict.items() if isinstance(value, torch.Tensor)}


def _part(tensor: torch.Tensor) -> torch.Tensor:
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    wait = getattr(part, "wait", None)  # the result of a collective that may not have come yet
    return (wait() if wait is not None else part).detach()


def size_of(engines: Mapping[str, TrainEngine]) -> int:
    """Return about how many bytes of tensors there are on this rank: weights, and what optimizers have by now."""
    states = [model_state(engine.model) for engine in engines.values()]
    states += [state for engine in engines.values() if engine.optimizer is not None for state in engine.optimizer.state.values()]
    return sum(_size(_part(value)) for state in states for value in state.values() if isinstance(value, torch.Tensor))


def of_engine(tensors: Flat, engine: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one engine."""
    return {fqn: tensor for fqn, tensor in tensors.items() if fqn.startswith(f"{engine}.")}


def room_for(tensors: Flat) -> int:
    """Return how many bytes of memory a copy of these takes; of tied ones, one copy."""
    return sum(pages(_size(tensor)) for _, tensor in _once(tensors))


def checked_mode(mode: object) -> SaveMode:
    """Return a mode of saving. Raises `UsageError` (kind ``bad-mode``)."""
    if mode not in ("auto", "sync", "async"):
        raise UsageError("no such mode of saving", kind="bad-mode", hint='save_mode="auto", "sync" or "async"', save_mode=mode)
    return mode


def to_copy(
    engines: Mapping[str, TrainEngine], default: SaveMode, rooms: Mapping[str, int], most_bytes: int | None
) -> tuple[list[str], list[str]]:
    """Return which engines are copied, and which were to be and do not fit. From what all ranks know alike.

    ``rooms``: how much memory each takes, on the rank where it takes most; not asked for without ``most_bytes``. In the order of
    the engines: as many as fit.
    """
    copied: list[str] = []
    refused: list[str] = []
    left = most_bytes
    for name, engine in engines.items():
        mode = checked_mode(engine.save_mode or default)
        if mode == "sync":
            continue
        if left is not None and rooms[name] > left:
            refused += [name] if mode == "async" else []
            continue
        left = None if left is None else left - rooms[name]
        copied.append(name)
    return copied, refused


class Copies:
    """Keep the memory that copies are made in: it is asked for once, where the state does not grow."""

    def __init__(self) -> None:
        self._memory: Memory | None = None

    @property
    def size_bytes(self) -> int:
        """Return how much memory is kept."""
        return 0 if self._memory is None else self._memory.size_bytes

    def make(self, tensors: Flat) -> dict[str, torch.Tensor]:
        """Return copies of these tensors. Those made before must not be in use any more."""
        memory = self._memory = self._memory or memory_for(tensors.values())
        memory.reserve(room_for(tensors))
        made: dict[Hashable, torch.Tensor] = {}
        start = 0
        for key, tensor in _once(tensors):
            size = _size(tensor)
            made[key] = place(memory.memory[start : start + size], tensor, tensor.dtype)
            start += pages(size)
        return {fqn: made[_key(fqn, tensor)] for fqn, tensor in tensors.items()}

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _once(tensors: Flat) -> Iterator[tuple[Hashable, torch.Tensor]]:
    seen: set[Hashable] = set()
    for fqn, tensor in tensors.items():
        key = _key(fqn, tensor)
        if key not in seen:
            seen.add(key)
            yield key, tensor


def _key(fqn: str, tensor: torch.Tensor) -> Hashable:
    key = _TENSORS.identity(tensor)
    return fqn if key is None else key


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
