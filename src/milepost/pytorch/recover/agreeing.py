"""Decide as one what a dump is for, from what each rank has heard. Pure: all ranks reckon with the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from milepost.lifecycle.costs import NOTHING, Costs
from milepost.lifecycle.stopping import StopBy, decide, leading

Action: TypeAlias = Literal["train", "save", "leave"]


@dataclass(frozen=True, slots=True)
class Word:
    """Say what one rank knows: what it is to end for, and what saves have taken."""

    requests: tuple[StopBy, ...] = ()
    """Their deadlines count from the exchange: monotonic clocks of two machines have nothing in common."""
    saved: frozenset[str] = frozenset()
    """The paths for which an early save was made."""
    duration_s: float = 0.0
    slowest_s: float = 0.0
    gap_s: float = 0.0
    """How long it may be from one dump to the next."""
    size_bytes: int = 0
    """What a save would write, on this rank."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what all ranks do."""

    action: Action
    request: StopBy | None = None
    """Why they leave."""
    early: tuple[str, ...] = ()
    """For which paths they save ahead of the end."""

    @property
    def leaves(self) -> bool:
        return self.action == "leave"

    @property
    def why(self) -> str:
        """Return what a save gives as its reason; empty where only a trigger has one."""
        if self.request is not None:
            return f"stopped by {self.request.path}"
        return f"ahead of the end: {', '.join(self.early)}" if self.early else ""


TRAIN = Verdict("train")


def agreed(words: Sequence[Word]) -> Verdict:
    """Return what all ranks do.

    A request of one rank is one of all, the nearest deadline counts, and a save takes as long as it takes the slowest. So what
    one rank by itself takes for urgent, all do. There is nothing to leave out of a last save: a rank that lacks an optimizer
    does not train.
    """
    requests = [replace(each, path=path) for path, each in _by_path(words).items()]
    saved = {path for path in (each.path for each in requests) if _is_saved(path, words)}
    decision = decide(
        requests, 0, _slowest(words), size_bytes=max(word.size_bytes for word in words), gap_s=_longest_gap_s(words), saved=saved
    )
    if decision in ("leave", "leave-essential"):
        return Verdict("leave", leading(requests))
    if decision == "save":
        return Verdict("save", early=tuple(sorted(each.path for each in requests if each.early and each.path not in saved)))
    return TRAIN


def is_urgent(word: Word) -> bool:
    """Return whether a rank has heard of what the others have to know now; else there is nothing to tell them."""
    return bool(word.requests) and agreed([word]) != TRAIN


def _by_path(words: Sequence[Word]) -> dict[str, StopBy]:
    """Return one request for each path, in the order of the ranks: each has its own deadline for the same signal."""
    found: dict[str, StopBy] = {}
    for each in (request for word in words for request in word.requests):
        first = leading([found[each.path], each]) if each.path in found else each
        assert first is not None
        found[each.path] = first
    return found


def _is_saved(path: str, words: Sequence[Word]) -> bool:
    asked = [word for word in words if any(each.path == path and each.early for each in word.requests)]
    return bool(asked) and all(path in word.saved for word in asked)


def _slowest(words: Sequence[Word]) -> Costs:
    durations, slowest = [word.duration_s for word in words], [word.slowest_s for word in words]
    return replace(NOTHING, duration_s=max(durations), slowest_s=max(slowest))


def _longest_gap_s(words: Sequence[Word]) -> float:
    return max(word.gap_s for word in words)
