"""Loaders that say where they are: plain ones, and torchdata's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

PER_BATCH = 2


class Plain:
    """Give the numbers below ``size`` in twos, each epoch in another order that only ``set_epoch`` says."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.seed, self.epoch, self.place = size, seed, 0, 0
        self.resumed, self.fails = False, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.size // PER_BATCH)

    def __iter__(self) -> Iterator[list[int]]:
        if not self.resumed:
            self.place = 0
        self.resumed = False
        order = list(range(self.size))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        while self.place < len(self):
            at = self.place * PER_BATCH
            self.place += 1
            if self.fails:
                self.fails -= 1
                raise OSError("a sample could not be read")
            yield order[at : at + PER_BATCH]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.resumed = state["place"], True


def torchdata(size: int, workers: int = 0, *, sampler: Any = "random", **more: Any) -> StatefulDataLoader[Any]:
    """Return torchdata's loader over the numbers below ``size``, shuffled by a generator, or by epochs."""
    data = list(range(size))
    if sampler == "random":
        more |= {"shuffle": True, "generator": torch.Generator().manual_seed(5)}
    elif sampler is not None:
        more |= {"sampler": sampler(data, num_replicas=1, rank=0, seed=5)}
    return StatefulDataLoader(data, batch_size=PER_BATCH, num_workers=workers, **more)


def distributed(size: int, workers: int = 0, **more: Any) -> StatefulDataLoader[Any]:
    """Return one whose order only ``set_epoch`` says."""
    return torchdata(size, workers, sampler=DistributedSampler, **more)


def numbers(batch: Any) -> tuple[int, ...]:
    """Return what is in a batch."""
    return tuple(int(one) for one in batch)
