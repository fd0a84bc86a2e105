"""End a process whose training thread is far from a safe point: for whoever keeps its deadlines, in another thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from milepost.lifecycle.stopping import StopBy

if TYPE_CHECKING:
    from milepost.engine.checkpoint_engine import CheckpointEngine


def is_only_staged(engine: CheckpointEngine) -> bool:
    """Return whether the last safe point is kept staged, and no generation holds it."""
    return engine._saving.keeps


def is_published(engine: CheckpointEngine) -> bool:
    """Return whether the last safe point was kept staged, and a generation holds it."""
    kept = engine._saving._kept
    return kept is not None and kept.published


def now_ns(engine: CheckpointEngine) -> int:
    """Return what the engine's monotonic clock shows, by which it has its deadlines."""
    return engine._clock.monotonic_ns()


def step_of(engine: CheckpointEngine) -> int:
    """Return the last step that the engine was told of; -1 if there was none."""
    return engine._beat.step


@contextmanager
def between_safe_points(engine: CheckpointEngine) -> Iterator[bool]:
    """Keep training from its next safe point, and say whether the process may end: the last one was staged, and is durable.

    Never waits: training that is at a safe point just now may be making its last save.
    """
    free = engine._turn.acquire(blocking=False)
    try:
        yield free and is_published(engine)
    finally:
        if free:
            engine._turn.release()


def note_the_end(engine: CheckpointEngine, request: StopBy) -> None:
    """Leave word that the process ends here, as of the safe point that was staged. Call it within `between_safe_points`."""
    kept = engine._saving._kept
    if kept is not None and engine._open is not None:
        engine._stops.note_the_end(engine._open.session, request, kept.now, frozenset(), record=True)
        engine._beat.enter("closed")
