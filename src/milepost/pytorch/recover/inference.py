"""Say what a handler tells the side that samples: to hold still, and which weights are current after a load. A12"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


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
