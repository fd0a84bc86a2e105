"""Ranks find each other in groups of milepost's own, whatever other groups each of them is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from milepost.errors import ServiceError
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.recover.groups import make_groups
from tests.pytorch.dcp.ranks import run as launch


def meets(rank: int) -> Any:
    part = dist.new_group([0, 1])
    if rank != 1:
        dist.new_group([rank], use_local_synchronization=True)  # two of them are in one group more than the third
    if rank == 2:
        return None
    told = []
    for number in range(10):
        made = make_groups(part, 30)
        told.append((made.ranks.told_by_all(rank + number), Ranks(made.beside).told_by_first(rank + number)))
        made.close()
    told.append((Ranks(part).beside(30).told_by_all(rank), 0))
    return told


def waits_for_one_that_does_not_come(rank: int) -> Any:
    if rank == 0:
        try:
            make_groups(None, 0.5)
        except ServiceError as error:
            return error.kind
    return None


def both(rank: int) -> Any:
    return meets(rank), waits_for_one_that_does_not_come(rank)


def test_the_ranks_of_a_part_meet_again_and_again_whatever_else_they_are_in(tmp_path: Path) -> None:
    first, second, other = launch(3, both, tmp_path, group_s=20)
    assert first[0] == second[0] == [*(([number, number + 1], number) for number in range(10)), ([0, 1], 0)]
    assert first[1] == "rank-lost"
    assert other == (None, None)
