"""Keep one process a rank, joined by gloo, that hold parts of one state and do together what they are told."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from bench.measure import Contender, Kind, quiet

Deeds = Mapping[str, Callable[[], Mapping[str, float]]]
"""What a rank can be told to do, and what it then says: bytes are added up, times are the slowest rank's."""
CLOSE = "close"
"""The deed that ends a rank."""
WAIT_S = 300.0
_SUMMED = ("extra", "written")


@dataclass(frozen=True, slots=True)
class Place:
    """Say to a rank which one it is, and where its files go."""

    rank: int
    ranks: int
    path: Path


class Ranks:
    """Run ``module:function`` in a process a rank: it is given its `Place` and the arguments, and returns the rank's deeds."""

    def __init__(self, count: int, function: str, path: Path, **arguments: object) -> None:
        path.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(theirs, function, Place(rank, count, path), arguments))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self._answers()
        except BaseException:
            self._end()
            raise

    def do(self, deed: str) -> Mapping[str, float]:
        """Have all ranks do something at once, and return their figures as one."""
        for pipe in self._pipes:
            pipe.send(deed)
        answers = self._answers()
        return {quantity: _as_one(quantity, [answer[quantity] for answer in answers]) for quantity in answers[0]}

    def contender(self, deed: str, kind: Kind) -> Contender:
        """Return a deed as something that is measured."""
        return Contender(deed, kind, partial(self.do, deed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End them all; those that may wait for each other by force."""
        try:
            if kind is None:
                self.do(CLOSE)
        finally:
            self._end()

    def _answers(self) -> list[Mapping[str, float]]:
        left, answers = dict(enumerate(self._pipes)), dict[int, Mapping[str, float]]()
        while left:
            ready = wait(list(left.values()), WAIT_S)
            if not ready:
                raise RuntimeError(f"ranks {sorted(left)} say nothing")
            for rank in [rank for rank, pipe in left.items() if pipe in ready]:
                try:
                    answer = left.pop(rank).recv()
                except EOFError:
                    answer = "it ended without a word"
                if isinstance(answer, str):
                    raise RuntimeError(f"rank {rank} failed\n{answer}")
                answers[rank] = answer
        return [answers[rank] for rank in sorted(answers)]

    def _end(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _as_one(quantity: str, values: list[float]) -> float:
    return sum(values) if quantity.startswith(_SUMMED) else max(values)


def _rank(pipe: Connection, function: str, place: Place, arguments: Mapping[str, Any]) -> None:
    quiet()
    # What torch and others print besides belongs to no table.
    sys.stdout = sys.stderr = open(place.path / f"rank-{place.rank}.log", "w", encoding="utf-8")  # noqa: SIM115 - until the end
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.ranks), LOCAL_RANK=str(place.rank))
    try:
        meeting = f"file://{place.path / 'meeting'}"
        dist.init_process_group(
            "gloo", init_method=meeting, rank=place.rank, world_size=place.ranks, timeout=timedelta(seconds=120)
        )
        module, _, name = function.partition(":")
        deeds: Deeds = getattr(importlib.import_module(module), name)(place, **arguments)
        told = ""
        pipe.send({})
        while told != CLOSE:
            told = pipe.recv()
            gc.collect()
            dist.barrier()  # all begin at once
            pipe.send(deeds[told]())
        dist.destroy_process_group()
    except EOFError:  # nobody wants anything any more
        return
    except BaseException:  # noqa: BLE001 - whatever it is, whoever measures is told
        pipe.send(traceback.format_exc())
