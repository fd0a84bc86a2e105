"""Say what is trained: a model, and what changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

SaveMode: TypeAlias = Literal["auto", "sync", "async"]


@dataclass(frozen=True, slots=True)
class TrainEngine:
    """Hold a model with its optimizer and schedule. A reference model is one without an optimizer.

    ``save_mode``: ``sync`` writes its tensors while training waits, ``async`` copies them into host memory that is kept, and
    writes beside training; ``auto`` is async where the copies fit. None: what the handler says.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    lr_scheduler: Any = None
    save_mode: SaveMode | None = None
