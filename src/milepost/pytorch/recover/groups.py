"""Make the process groups that a handler talks over: one for its caller's thread, one for the thread that saves.

A collective of one thread must not meet one of another in the same group: they would answer each other. gloo, since plans and
errors are objects in the memory of the host, and since no save is to wait for the GPU's queue.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch.distributed as dist

from milepost.pytorch.gloo import group_of
from milepost.pytorch.ranks import Ranks, is_alive, losses


@dataclass(frozen=True, slots=True)
class Groups:
    """Hold both groups; None where there is one process only."""

    ranks: Ranks
    front: dist.ProcessGroup | None = None
    beside: dist.ProcessGroup | None = None
    is_first: bool = True
    """Known also when training has ended all groups."""

    def close(self) -> None:
        """Give both back, unless training has ended all of them already."""
        for group in (self.front, self.beside):
            if group is not None and is_alive(group):
                dist.destroy_process_group(group)


def make_groups(group: dist.ProcessGroup | None, timeout_s: float) -> Groups:
    """Return the groups for the ranks of ``group``, all of them if it is None. All of these call it at once."""
    if Ranks(group).count == 1:
        # DCP warns of every save that a process makes by itself, whoever asked it to.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        return Groups(Ranks(group))
    with losses():
        front, beside = (group_of(group, timeout_s) for _ in range(2))
    return Groups(Ranks(front), front, beside, dist.get_rank(front) == 0)
