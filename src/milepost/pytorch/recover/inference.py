"""Say what a handler tells the side that samples: to hold still, and which weights are current after a load. A12"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from milepost.errors import UsageError
from milepost.pytorch.ranks import Ranks


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Name restored weights, for whoever samples with them. ``version`` is the step that is trained next."""

    version: int
    step: int
    """The step that was trained last."""
    run_id: str
    generation: int
    engine: str
    state: Callable[[], Mapping[str, torch.Tensor]]
    """Return all weights, whole: sharded ones are gathered, so all ranks call it or none."""


class Inference(Protocol):
    """Be the side that samples. All ranks call these, in this order, once for each load that brings weights back.

    Nothing is overwritten before ``pause`` has returned on all ranks. ``resume`` comes only once all ranks have the restored
    weights, and all have handed them over; after a load that has failed it does not come: sampling stays paused.
    """

    def pause(self) -> None:
        """Start no rollout from now on, and return once none is under way that would take new weights."""

    def update_weights(self, update: WeightUpdate) -> None:
        """Take the restored weights: from ``update.state()``, or from elsewhere by ``update.generation``."""

    def resume(self) -> None:
        """Go on, with the weights of the update."""


class Gathering:
    """Gather weights for a callback on all ranks, so that none waits for the shards of one whose callback has ended."""

    def __init__(self, ranks: Ranks, gather: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._ranks, self._gather = ranks, gather
        self._thread: int | None = threading.get_ident()
        self._is_apart = False

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return all weights. Raises `UsageError` (kind ``ranks-apart``) if another rank's callback has ended without them."""
        if self._thread == threading.get_ident() and not self._is_apart:
            self._is_apart = not all(self._ranks.told_by_all(True))
        if self._is_apart:
            raise UsageError(
                "another rank's callback has ended without asking for the weights, which are sharded",
                kind="ranks-apart",
                hint="call update.state() on all ranks or on none; look at what the other ranks have logged",
            )
        return self._gather()

    def end(self) -> None:
        """Say that this rank's callback has ended; whoever asks later asks on all ranks."""
        if not self._is_apart:
            self._is_apart = any(self._ranks.told_by_all(False))
        self._thread = None
