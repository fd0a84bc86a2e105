"""Ranks are killed at random instants of a run, again and again: it ends with the bits of the undisturbed one. A10, A14"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import milepost
from milepost.errors import NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.pytorch.dcp import RunWriter, load, save
from tests.pytorch.dcp.ranks import WAIT_S, RankProcess, _rank
from tests.pytorch.dcp.states import same_bits

LAST = 14
KILLS = int(os.environ.get("MILEPOST_DCP_KILLS", "3"))


class Training:
    """Train a sharded tensor on numbers that each rank draws from its own generator."""

    def __init__(self) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.w = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])
        self.frozen = distribute_tensor(torch.arange(4096.0).reshape(64, 64), mesh, [Shard(0)])
        torch.manual_seed(dist.get_rank())

    def step(self) -> None:
        local = self.w.to_local()
        local.mul_(0.9).add_(torch.randn(local.shape))

    def state(self) -> dict[str, Any]:
        return {"model": {"w": self.w}, "reference": {"w": self.frozen}}


def train(rank: int, root: str, told: str) -> None:
    group = dist.new_group()
    training, own = Training(), {"rng": milepost.Rng()}
    state = training.state()
    try:
        first = load(state, root, own=own).step + 1
    except NotFoundError:
        first = 1
    pending = None
    for step in range(first, LAST + 1):
        training.step()
        writer = RunWriter(root, step=step, keep=Keep(last=2))
        if pending is not None:
            pending.result()
            pending = None
        if step % 3:
            saved = save(training.state(), writer, own=own)
        else:
            from milepost.pytorch.dcp.own import with_own

            pending = torch_dcp.async_save(with_own(training.state(), own, rank), storage_writer=writer, process_group=group)
            continue
        if rank == 0:
            Path(told).write_text(str(saved.step))
    if pending is not None:
        pending.result()


def start(place: Path, number: int, *args: Any) -> list[Any]:
    made = []
    for rank in range(2):
        _, theirs = multiprocessing.Pipe(duplex=False)
        meeting = f"file://{place / f'siege-{number}'}"
        process = RankProcess(target=_rank, args=(theirs, rank, 2, meeting, 60.0, train, args))
        process.start()
        theirs.close()
        made.append(process)
    return made


def ended(processes: list[Any]) -> None:
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode is not None, "a rank hangs"


@pytest.mark.parametrize("seed", [1])
def test_a_run_whose_ranks_are_killed_at_random_ends_with_the_bits_of_one_left_alone(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    alone, root = str(tmp_path / "alone"), str(tmp_path / "run")
    began = time.monotonic()
    ended(start(tmp_path, 0, alone, str(tmp_path / "alone-told")))
    lasts = time.monotonic() - began
    told = tmp_path / "told"
    for number in range(1, KILLS + 1):
        processes = start(tmp_path, number, root, str(told))
        victim = processes[chance.randrange(2)]
        victim.join(chance.uniform(0.2, 1.0) * lasts)
        if victim.exitcode is None:
            os.kill(victim.pid, signal.SIGKILL)
        ended(processes)
        if told.exists():
            live = {"model": {"w": torch.zeros(6, 4)}}
            assert load(live, root, no_dist=True).step >= int(told.read_text()), "what was acknowledged is there"
    ended(start(tmp_path, KILLS + 1, root, str(told)))
    found, wanted = ({"model": {"w": torch.zeros(6, 4)}} for _ in range(2))
    assert load(found, root, no_dist=True).step == load(wanted, alone, no_dist=True).step == LAST
    assert same_bits(found["model"]["w"], wanted["model"]["w"])
    assert milepost.verify(root).ok
