"""Run a function on several ranks, each a process of its own, joined by gloo.

The processes are forked from one that has imported torch and nothing else: to import it in each takes seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

WAIT_S = 240
"""How long a rank may take before the test fails: it only ever fails."""
GROUP_S = 60
"""How long a rank waits for another: `docs/distributed.md` says that nobody waits longer than the process group."""


_SERVER = forkserver.ForkServer()
"""One of our own: environments of other tests are forked from that of the module, and are to find nothing imported."""
_SERVER.set_forkserver_preload(["tests.pytorch.dcp.preloaded"])


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: Any) -> None:
        with mock.patch.object(forkserver, "connect_to_new_process", _SERVER.connect_to_new_process):
            super()._launch(process_obj)  # type: ignore[misc]


class RankProcess(ForkServerProcess):
    """Be a process that begins with torch imported."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


@dataclass(frozen=True)
class Outcome:
    """Say how a rank has ended: what it returned, what it raised, or that it was killed."""

    value: Any = None
    error: str = ""
    killed: bool = False


def run(ranks: int, function: Callable[..., Any], place: Path, *args: Any, group_s: float = GROUP_S) -> list[Any]:
    """Return what ``function(rank, *args)`` returns on each rank; raise if one of them failed."""
    outcomes = attempt(ranks, function, place, *args, group_s=group_s)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}: {outcome.error}"
        assert not outcome.killed, f"rank {rank} was killed"
    return [outcome.value for outcome in outcomes]


def attempt(
    ranks: int, function: Callable[..., Any], place: Path, *args: Any, group_s: float = GROUP_S, meet: bool = True
) -> list[Outcome]:
    """Return how ``function(rank, *args)`` has ended on each rank."""
    with _meeting(place) as meeting:
        pipes: list[Connection] = []
        processes = []
        for rank in range(ranks):
            mine, theirs = multiprocessing.Pipe(duplex=False)
            process = RankProcess(
                target=_rank, args=(theirs, rank, ranks, f"file://{meeting}" if meet else "", group_s, function, args)
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return [_outcome(pipe) for pipe in pipes]
        finally:
            for pipe, process in zip(pipes, processes, strict=True):
                process.join(WAIT_S)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
                pipe.close()


def _outcome(pipe: Connection) -> Outcome:
    assert wait([pipe], WAIT_S), "a rank hangs"
    try:
        outcome: Outcome = pipe.recv()
    except EOFError:
        return Outcome(killed=True)
    return outcome


@contextmanager
def _meeting(place: Path) -> Iterator[Path]:
    """Give each run a file of its own to meet at: gloo never uses one twice."""
    place.mkdir(parents=True, exist_ok=True)
    number = len(list(place.glob("meeting-*")))
    yield place / f"meeting-{number}"


def _rank(pipe: Connection, rank: int, ranks: int, meeting: str, group_s: float, function: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    try:
        if meeting:
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=timedelta(seconds=group_s))
        pipe.send(Outcome(function(rank, *args)))
        if meeting:
            dist.barrier()  # nobody leaves while another still reads from it
    except BaseException:  # noqa: BLE001 - whatever it is, the test is told
        pipe.send(Outcome(error=traceback.format_exc()))
    finally:
        pipe.close()
        if meeting and dist.is_initialized():
            dist.destroy_process_group()


def die() -> None:
    """End this process as the OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
