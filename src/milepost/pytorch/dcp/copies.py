"""Plan a save by the live state, and write copies in the place of some tensors: after what is live, which training waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType


class CopiesPlanner(DefaultSavePlanner):
    """Plan as DCP does. ``copies`` are by DCP's names what stands for this rank's part of a tensor, on this host.

    ``free`` is called once nothing live is read any more: training may go on, while the copies are written.
    """

    def __init__(self, copies: Mapping[str, torch.Tensor], free: Callable[[], None]) -> None:
        super().__init__()
        self.copies = copies
        self.free = free

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the copy, where there is one."""
        copy = self.copies.get(index.fqn)
        return super().lookup_object(index) if copy is None else copy

    def is_copied(self, item: WriteItem) -> bool:
        """Return whether training may change what the item was planned for."""
        return item.type == WriteItemType.BYTE_IO or item.index.fqn in self.copies


def in_order(items: list[WriteItem], planner: object) -> list[list[WriteItem]]:
    """Return what is to be written in which order: all that is live, then copies."""
    if not isinstance(planner, CopiesPlanner):
        return [items]
    live = [item for item in items if not planner.is_copied(item)]
    return [live, [item for item in items if planner.is_copied(item)]]
