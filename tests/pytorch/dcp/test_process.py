"""DCP saves in a process of its own: what it publishes counts, and its death is told and survived. A9, A10"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from milepost.pytorch.dcp import RunWriter, as_error, end_process, load
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import differences
from tests.pytorch.dcp.test_several_ranks import live_in, small

PROCESS = AsyncCheckpointerType.PROCESS


def save_in_processes_that_die(rank: int, root: str) -> Any:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.manual_seed(0)

    def save(step: int) -> Any:
        return dcp.async_save(small(step), storage_writer=RunWriter(root, step=step), async_checkpointer_type=PROCESS)

    numbers = [save(step).result().storage_data.number for step in (1, 2)]
    if rank == 1:
        os.kill(executor._CHECKPOINT_PROCESS._save_process.pid, signal.SIGKILL)
        executor._CHECKPOINT_PROCESS._save_process.join()
    dist.barrier()
    failed = save(3).exception()
    assert failed is not None
    ended = end_process(), end_process()
    dist.barrier()
    live = small(0)
    restored = load(live, root, which=1)
    numbers.append(save(4).result().storage_data.number)
    dist.barrier()
    end_process()
    return numbers, type(as_error(failed)).__name__, ended, restored.step, differences(live, small(1))


def test_a_checkpoint_process_that_died_fails_the_save_on_all_ranks_and_can_be_begun_anew(tmp_path: Path) -> None:
    # Four processes import torch: some fifteen seconds.
    root = tmp_path / "run"
    for numbers, error, ended, step, found in run(2, save_in_processes_that_die, tmp_path, str(root)):
        assert numbers == [1, 2, 3]
        assert error == "ServiceError"
        assert (ended, step, found) == ((True, False), 1, [])
    assert live_in(root) == {1: 1, 2: 2, 3: 4}
    from milepost.publish.view import read
    from tests.engine.training import local

    assert read(local(root)).live[3].rollback_to == 1, "what the trainer had loaded, its process knows"
