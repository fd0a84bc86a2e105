"""Say who is told of the end of the process, and what a thread beside training may do for it, far from a safe point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from milepost.lifecycle.stopping import EXIT_CODE, StopBy
from milepost.records import Summary

if TYPE_CHECKING:
    from milepost.engine.checkpoint_engine import CheckpointEngine


class Stoppable(Protocol):
    """Be what signals, notices and limits are told to: an engine, or the handler of several ranks."""

    def stop_by(
        self,
        within: str | float | None = None,
        *,
        path: str = "",
        exit_code: int = EXIT_CODE,
        at_once: bool = True,
        early: bool = False,
    ) -> None:
        """Have the next safe point save and leave. For any thread and for signal handlers."""

    def withdraw(self, path: str) -> None:
        """Take a `stop_by` back."""

    @property
    def stopping(self) -> StopBy | None:
        """Return what this process is to end for."""

    @property
    def last_call_ns(self) -> int | None:
        """Return after which instant no save would be durable in time."""

    @property
    def apart(self) -> Apart:
        """Return what another thread sees of it."""


class Apart(Protocol):
    """Be what another thread may see of who trains, and do for it, while the training thread is far from a safe point."""

    @property
    def state(self) -> Mapping[str, object]:
        """Return its components: the envs among them have workers."""

    @property
    def step(self) -> int:
        """Return the last step that it was told of; -1 if there was none."""

    @property
    def now_ns(self) -> int:
        """Return what its monotonic clock shows, by which it has its deadlines."""

    @property
    def slowest_s(self) -> float:
        """Return how long the slowest of its last saves took, in seconds."""

    @property
    def is_only_staged(self) -> bool:
        """Return whether the last safe point is kept staged, and no generation holds it."""

    @property
    def is_published(self) -> bool:
        """Return whether the last safe point was kept staged, and a generation holds it."""

    def flush(self, reason: str) -> Summary | None:
        """Publish what is staged, and return the newest generation once that is durable."""

    def held(self) -> AbstractContextManager[bool]:
        """Keep training from its next safe point, and say whether the process may end: the last one was staged, and is durable.

        Never waits: training that is at a safe point just now may be making its last save.
        """

    def note_the_end(self, request: StopBy) -> None:
        """Leave word that the process ends here, as of the safe point that was staged. Call it within `held`."""


class EngineApart:
    """Be an engine as another thread sees it."""

    def __init__(self, engine: CheckpointEngine) -> None:
        self._engine = engine

    @property
    def state(self) -> Mapping[str, object]:
        return self._engine.state

    @property
    def step(self) -> int:
        return self._engine._beat.step

    @property
    def now_ns(self) -> int:
        return self._engine._clock.monotonic_ns()

    @property
    def slowest_s(self) -> float:
        return self._engine._meter.costs.slowest_s

    @property
    def is_only_staged(self) -> bool:
        return self._engine._saving.keeps

    @property
    def is_published(self) -> bool:
        kept = self._engine._saving._kept
        return kept is not None and kept.published

    def flush(self, reason: str) -> Summary | None:
        return self._engine.flush_staged(reason)

    @contextmanager
    def held(self) -> Iterator[bool]:
        free = self._engine._turn.acquire(blocking=False)
        try:
            yield free and self.is_published
        finally:
            if free:
                self._engine._turn.release()

    def note_the_end(self, request: StopBy) -> None:
        engine = self._engine
        kept = engine._saving._kept
        if kept is not None and engine._open is not None:
            engine._stops.note_the_end(engine._open.session, request, kept.now, frozenset(), record=True)
            engine._beat.enter("closed")
