"""Decide what a call of ``learn()`` has to do, from what the run root holds. Pure.

A script may call ``learn()`` several times; run again, it makes the same calls. The n-th completed call on one model is
the n-th in the checkpoint, too: its *ordinal*, counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Start(Enum):
    """Say how a call of ``learn()`` begins."""

    FRESH = "train from what is live: nothing of this call was saved"
    CONTINUE = "go on from a rollout boundary inside this call"
    EXTEND = "go on from the end of this call, which has a larger total now"
    FINISHED = "train nothing: this call had ended"
    SKIPPED = "train nothing: a later call had begun"


@dataclass(frozen=True, slots=True)
class Saved:
    """Hold what a generation says about the call it was saved in."""

    step: int
    learn: int
    ended: bool
    total: int
    rounds: int = 0
    """How many rollouts of this call were over."""

    @classmethod
    def read(cls, step: int, counters: Mapping[str, int]) -> Saved:
        """Read the counters of a generation's summary."""
        ended = bool(counters.get("ended", 0))
        return cls(step, counters.get("learn", 0), ended, counters.get("total", 0), counters.get("rounds", 0))


def decide(saved: Saved | None, *, learn: int, total: int) -> Start:
    """Return how the ``learn``-th call begins, which is to go on until step ``total``."""
    if saved is None or saved.learn < learn:
        return Start.FRESH
    if saved.learn > learn:
        return Start.SKIPPED
    if not saved.ended:
        # A total that was lowered below the step reached leaves nothing to train.
        return Start.CONTINUE if saved.step < total else Start.FINISHED
    # A callback may have stopped the call before its total: it has ended all the same, unless more is asked for now.
    return Start.EXTEND if total > max(saved.step, saved.total) else Start.FINISHED
