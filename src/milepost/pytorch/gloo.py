"""Make process groups of milepost's own, for the ranks of one that the script has made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_CONNECT_S = 120.0
"""How long it may take ranks to connect that are all there."""


def group_of(group: dist.ProcessGroup | None, timeout_s: float) -> dist.ProcessGroup:
    """Return a new gloo group of the ranks of ``group``, all if it is None. All of these call it at once, and nobody else.

    In it nobody waits longer for a rank than ``timeout_s``. Raises RuntimeError if a rank does not come.
    """
    given = group or dist.group.WORLD
    assert given is not None
    members = dist.get_process_group_ranks(given)
    name = _meet(given.group_name, len(members), timeout_s)
    # gloo waits for a connection that was lost, too, as long as for a rank that is late: half an hour, without a word.
    made = _made(members, name, timedelta(seconds=min(timeout_s, _CONNECT_S)))
    c10d._set_pg_timeout(timedelta(seconds=timeout_s), made)
    return made


def _meet(owner: str, ranks: int, timeout_s: float) -> str:
    """Wait until all ranks are here, and return a name that no group had before."""
    store = c10d._get_default_store()
    name = f"milepost-{owner}-{store.add(f'milepost/{owner}/{dist.get_rank()}', 1)}"
    if store.add(f"{name}/here", 1) == ranks:
        store.set(f"{name}/all", "1")
    store.wait([f"{name}/all"], timedelta(seconds=timeout_s))
    return name


def _made(members: list[int], name: Any, timeout: timedelta) -> dist.ProcessGroup:
    if len(members) == dist.get_world_size():
        whole: dist.ProcessGroup = dist.new_group(members, timeout, backend="gloo")
        return whole
    # new_group(use_local_synchronization=True) names a group after how many the process has: ranks that are in others, too, each
    # wait under another name until the timeout is over; and a group made after another has ended takes its name, and with it
    # the addresses that its ranks once had.
    place = {rank: number for number, rank in enumerate(members)}
    made: dist.ProcessGroup = c10d._new_process_group_helper(
        len(members), place[dist.get_rank()], members, dist.Backend("gloo"), c10d._get_default_store(), name, timeout=timeout
    )[0]
    c10d._world.pg_group_ranks[made] = place
    return made
