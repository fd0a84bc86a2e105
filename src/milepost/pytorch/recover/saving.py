"""Carry out the saves of one handler, one at a time: all engines in one plan, published once, when the last byte is durable.

The story of one, on each rank: copy what is to be written beside training; then, in a thread of its own and over a process group
of its own, let DCP plan, write what is live, let training go on, write the copies, publish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from milepost.lifecycle.amounts import bytes_of
from milepost.pytorch import dcp
from milepost.pytorch.dcp.copies import CopiesPlanner
from milepost.pytorch.export.gathering import wait_for_copies
from milepost.pytorch.recover.engines import SaveMode, TrainEngine
from milepost.pytorch.recover.flight import Flight
from milepost.pytorch.recover.groups import Groups
from milepost.pytorch.recover.staging import Copies, checked_mode, flat_tensors, of_engine, room_for, to_copy

log = logging.getLogger("milepost")


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what one save saves: on each rank its own part."""

    engines: Mapping[str, TrainEngine]
    state: dict[str, Any]
    writer: dcp.RunWriter
    timed: AbstractContextManager[object]
    """Is entered around the writing, in the thread that writes."""
    published: Callable[[dcp.Saved], None]
    """Is told of the generation, in that thread."""


class Saving:
    """Have at most one save under way. All methods but `close` are called on all ranks at once."""

    def __init__(self, save_mode: SaveMode, staging_bytes: str | int | None) -> None:
        self._save_mode = checked_mode(save_mode)
        self._staging_bytes = None if staging_bytes is None else bytes_of(str(staging_bytes))
        self._copies = Copies()
        self._flight: Flight | None = None
        self._warned = False

    @property
    def staged_bytes(self) -> int:
        """Return how much host memory is kept for copies on this rank."""
        return self._copies.size_bytes

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is under way."""
        return self._flight is None

    @property
    def has_failed(self) -> bool:
        """Say whether the save under way has failed, as far as this rank knows by now."""
        return self._flight is not None and self._flight.is_over and self._flight.failure is not None

    def save(self, groups: Groups, task: Task) -> None:
        """Begin a save, and return when training may change the tensors: when it is published, if nothing was copied.

        Raises on all ranks what has failed by then on any.
        """
        ranks, tensors = groups.ranks, flat_tensors(task.state)
        copied = self._copied_engines(groups, task.engines, tensors)
        copies = ranks.together(self._copies_of, copied, tensors)
        flight = self._flight = Flight(task.writer.step, lambda free: _write(groups, task, CopiesPlanner(copies, free)))
        if len(copied) == len(task.engines):
            return
        failure = flight.wait_for_tensors()
        if not copied:
            flight.join()
            failure = flight.failure
        self._raise_on_all(groups, flight, failure)
        if not copied:
            self._flight = None

    def settle(self) -> None:
        """Wait for the save under way, and raise `SaveFailed` if it failed, once. On this rank alone."""
        flight = self._flight
        if flight is None:
            return
        flight.join()  # a Ctrl-C strikes: it is still under way
        self._flight = None
        failure = flight.failed()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Give the memory back. What is under way must be over."""
        self._copies.close()

    def _raise_on_all(self, groups: Groups, flight: Flight, failure: BaseException | None) -> None:
        try:
            groups.ranks.agree(failure)
        except BaseException:
            flight.join()  # DCP tells all ranks that one has failed, and it ends on each
            self._flight = None
            raise

    def _copied_engines(self, groups: Groups, engines: Mapping[str, TrainEngine], tensors: dict[str, torch.Tensor]) -> list[str]:
        """Return which engines are written beside training: the same on all ranks."""
        rooms: dict[str, int] = {}
        if self._staging_bytes is not None:
            by_rank = groups.ranks.told_by_all({name: room_for(of_engine(tensors, name)) for name in engines})
            rooms = {name: max(each[name] for each in by_rank) for name in engines}
        copied, refused = to_copy(engines, self._save_mode, rooms, self._staging_bytes)
        if refused and not self._warned:
            self._warned = True
            log.warning(
                "[recover] training waits while %s is saved: copies of %d bytes are more than staging_bytes=%d leaves",
                ", ".join(refused),
                sum(rooms[name] for name in refused),
                self._staging_bytes,
            )
        return copied

    def _copies_of(self, engines: list[str], tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        wanted = {fqn: tensor for name in engines for fqn, tensor in of_engine(tensors, name).items()}
        copies = self._copies.make(wanted) if wanted else {}
        wait_for_copies(tensors.values())  # live ones are read in another thread, whatever training has queued for them
        return copies


def _write(groups: Groups, task: Task, planner: CopiesPlanner) -> dcp.Saved:
    task.writer.only_together = groups.beside is not None
    with task.timed:
        saved = dcp.save(task.state, task.writer, planner=planner, process_group=groups.beside, no_dist=groups.beside is None)
    task.published(saved)
    return saved
