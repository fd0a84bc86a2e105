"""Let several ranks decide as one, and fail as one: no rank waits in a collective for another that has given up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from milepost.errors import MilepostError, ServiceError
from milepost.pytorch.dcp.together import as_error
from milepost.pytorch.dcp.writer import group_gone
from milepost.pytorch.gloo import group_of
from milepost.text import plain

T = TypeVar("T")


class Ranks:
    """Be the ranks of a process group; one, where there is none. All methods that talk are called by all ranks at once."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._beside: tuple[dist.ProcessGroup | None, Ranks] | None = None
        self._is_lost = False

    @property
    def count(self) -> int:
        """Return how many there are by now: a process group may be made after this object.

        Raises `UsageError` (kind ``group-gone``) where the group was ended: what they were to do together is nothing that one of
        them may do by itself.
        """
        if self._group is not None:
            if not is_alive(self._group):
                raise group_gone()
            return len(dist.get_process_group_ranks(self._group))
        return dist.get_world_size(self._group) if dist.is_available() and dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        """Return which of them this is."""
        return 0 if self.count == 1 else dist.get_rank(self._group)

    @property
    def is_first(self) -> bool:
        """Say whether this is the one that decides."""
        return self.rank == 0

    def told_by_first(self, value: T) -> T:
        """Return what the first rank has given."""
        if self.count == 1:
            return value
        told = [value]
        with self._losses(), late_interrupt():
            dist.broadcast_object_list(told, group=self._group, group_src=0)
        return told[0]

    def highest(self, values: Sequence[int]) -> list[int]:
        """Return the highest of each of some numbers among all ranks: one exchange of a few words."""
        if self.count == 1:
            return [*values]
        told = torch.tensor(values, dtype=torch.int64)
        with self._losses(), late_interrupt():
            dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group)
        return [int(each) for each in told.tolist()]

    def told_by_all(self, value: T) -> list[T]:
        """Return what each rank has given, by rank."""
        told = [value] * self.count
        if self.count > 1:
            with self._losses(), late_interrupt():
                dist.all_gather_object(told, value, group=self._group)
        return told

    def agree(self, failure: BaseException | None) -> None:
        """Raise on all ranks what the lowest of those that failed has met; return on all if none has.

        A rank that is gone, or silent for as long as the process group waits, is a `ServiceError` (kind ``rank-lost``). What is
        no `Exception`, as a Ctrl-C, is raised as it is where it struck, and as a `ServiceError` (kind ``rank-failed``) elsewhere.
        """
        is_gone = self._group is not None and not is_alive(self._group)
        if failure is not None and (is_gone or self.count == 1):
            raise failure
        if self.count == 1:
            return
        try:
            failures = self.told_by_all(None if failure is None else _portable(failure))
        finally:
            if failure is not None and not isinstance(failure, Exception):
                raise failure
        for rank, told in enumerate(failures):
            if told is not None:
                told.facts = {**told.facts, "failed_on_rank": rank}
                raise told from failure

    def together(self, act: Callable[..., T], *args: Any) -> T:
        """Do something on all ranks, and raise on all what one of them has met: see `agree`."""
        failure: BaseException | None = None
        answer: Any = None
        try:
            answer = act(*args)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks would wait for this one
            failure = error
        self.agree(failure)
        return answer  # type: ignore[no-any-return]

    def beside(self, timeout_s: float) -> Ranks:
        """Return the same ranks for one thread beside this: with a process group of their own, whose talk nobody else's meets.

        Made by the first call, on all ranks at once, for the process group that there is by then. In it nobody waits longer for
        a rank than ``timeout_s``; one that was killed is noticed at once. A group in which one did is of no more use to anybody:
        the next call makes another, when no thread of any rank talks in it any more.
        """
        if self.count == 1:
            return self
        if self._beside is not None and any(self.told_by_all(self._beside[1]._is_lost)):
            self._beside = None
        world = self._group or dist.group.WORLD
        if self._beside is None or self._beside[0] is not world:
            with self._losses():
                group = group_of(world, timeout_s)
            self._beside = (world, Ranks(group))
        return self._beside[1]

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """Say of what a process group raises that the ranks have lost each other, and remember it."""
        try:
            with losses():
                yield
        except ServiceError:
            self._is_lost = True
            raise


def is_alive(group: dist.ProcessGroup) -> bool:
    """Say whether a process group was not destroyed."""
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return False
    return True


@contextmanager
def late_interrupt() -> Iterator[None]:
    """Let a Ctrl-C strike at the end of the block: in the midst of what ranks do together it would leave the others waiting.

    Nothing else changes where another thread runs the block, or the script handles SIGINT by itself.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours:
        yield
        return
    struck: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: struck.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if struck:
            raise KeyboardInterrupt


@contextmanager
def losses() -> Iterator[None]:
    """Say of what a process group raises that the ranks have lost each other."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise as_error(error) from error


def _portable(failure: BaseException) -> MilepostError:
    """Return an error that can be made again on another rank."""
    if isinstance(failure, MilepostError):
        return failure
    return ServiceError(
        "a rank has failed",
        kind="rank-failed",
        hint="look at what that rank has logged",
        cause=plain(f"{type(failure).__name__}: {failure}".partition("\n")[0])[:300],
    )
