"""Measure what an injected fault has cost: work, time, generations. Pure: from what was seen of the starts and of the roots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

from milepost.publish.view import View
from milepost.records import Summary
from milepost.supervise.drill_run import Seen, Start
from milepost.text import name_of

MarkKind: TypeAlias = Literal["start", "training", "saved", "struck", "resumed", "trained", "caught up", "ended"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Say what happened in a run, and when: seconds since its first start."""

    kind: MarkKind
    at_s: float
    step: int | None = None


@dataclass(slots=True)
class Strike:
    """Say what was done to a run, and how it stood then."""

    what: str
    at_ns: int
    reached: Mapping[str, int]
    """By run, the last safe point it had come to."""
    acknowledged: Mapping[str, frozenset[int]]
    """By run root, the generations that counted."""
    phase: str = ""
    down_ns: int = 0
    """When it ended, where that was later: it had trained on until then."""
    since_ns: int = 0
    """From when the time to recover counts, if not from the strike."""
    since: str = "the kill"
    saves_first: bool = False
    """It was told before, and is to have saved its last step."""
    restarts: bool = True
    """The command had ended by it, and was started again."""
    damaged: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By run root, the generations that the drill itself has spoiled."""
    problems: list[str] = field(default_factory=list)
    """What did not go as it has to."""
    notes: list[str] = field(default_factory=list)
    struck: Start | None = None
    going_on: Start | None = None
    """The start in which it goes on; None: another is to be made."""

    @property
    def recovery_ns(self) -> int:
        """Return from when the time to recover counts."""
        return self.since_ns or self.at_ns


@dataclass(frozen=True, slots=True)
class Cost:
    """Say what a strike has cost one run. None: it could not be told."""

    from_generation: int | None
    from_step: int | None
    rpo_steps: int | None
    """Steps from the generation that it went on from to the last safe point before the strike: they are trained twice."""
    rpo_s: float | None
    """The time from the one to the other, and on to the strike."""
    rto_s: float | None
    """The time to the first safe point at which it had trained on."""
    resumed_s: float | None
    caught_up_s: float | None


@dataclass(frozen=True, slots=True)
class Way:
    """Be what was seen of one run (one root) in the start that was struck, and in the one that recovered."""

    before: Sequence[Seen]
    after: Sequence[Seen]
    steps: Mapping[int, int]
    """The step of each generation by number."""
    by_saves: bool = False
    """It was seen at its saves only: when it had resumed, between two of them, is not known."""


def cost(way: Way, strike: Strike, reached: int) -> Cost:
    """Measure one run. ``reached`` is the step of its last safe point before the strike."""
    if not strike.restarts:
        on = _first(way.after, lambda seen: seen.at_ns > strike.recovery_ns and seen.beats.step > reached)
        on = on or _first(way.after, lambda seen: seen.at_ns > strike.recovery_ns and seen.beats.phase in ("training", "closed"))
        return Cost(None, None, 0, 0.0, _since(on, strike.recovery_ns), None, None)
    resumed = _first(way.after, lambda seen: seen.beats.resumed > 0)
    number = max((seen.beats.resumed for seen in way.after), default=0)
    step = way.steps.get(number)
    if resumed is None or step is None:
        return Cost(number or None, None, None, None, None, None, None)
    on = _first(way.after, lambda seen: seen.beats.step > step)
    # Where it had come to its last step there is no further one: it has recovered when it has ended.
    on = on or _first(way.after, lambda seen: seen.at_ns >= resumed.at_ns and seen.beats.phase == "closed")
    caught_up = _first(way.after, lambda seen: seen.at_ns >= resumed.at_ns and seen.beats.step >= max(reached, step))
    return Cost(
        number,
        step,
        max(0, reached - step),
        _lost_s(way.before, strike.down_ns or strike.at_ns, step),
        _since(on, strike.recovery_ns),
        None if way.by_saves else _since(resumed, strike.recovery_ns),
        _since(caught_up, strike.recovery_ns),
    )


def _lost_s(before: Sequence[Seen], at_ns: int, step: int) -> float | None:
    """Return how long it had trained since it was first at ``step``, or since it began, if that is of an earlier start."""
    then = _first(before, lambda seen: seen.beats.step >= step and seen.beats.phase not in ("claiming", "resuming"))
    return max(0.0, (at_ns - then.at_ns) / 1e9) if then else None


def _first(seen: Sequence[Seen], fits: Callable[[Seen], bool]) -> Seen | None:
    return next((each for each in seen if fits(each)), None)


def _since(seen: Seen | None, ns: int) -> float | None:
    return None if seen is None else max(0.0, (seen.at_ns - ns) / 1e9)


def lost(
    acknowledged: Collection[int],
    damaged: Collection[int],
    view: View,
    went_on_from: int | None,
    published: Mapping[int, Summary],
) -> Iterator[str]:
    """Yield each generation that counted before a strike and is lost after it, and why.

    One that a later generation has dropped by the rule of what is kept is not lost, nor is one that the drill has damaged, nor
    one that a resume passes over by rule: saved in a hurry, without all of the state, or with weights that are not finite.
    ``published`` is every manifest that was seen, ``view`` the root at the end.
    """
    head, numbers = view.head, sorted(set(acknowledged) - set(damaged))
    for number in numbers:
        if went_on_from is not None and number > went_on_from and not _is_passed_over(published.get(number)):
            base = name_of(went_on_from) if went_on_from else "nothing"
            yield f"{name_of(number)} had been acknowledged, and it went on from {base}"
        elif number in view.void:
            yield f"{name_of(number)} has become void"
        elif number not in view.live:
            is_kept = head is None or number > head.number or number in head.keep
            if is_kept or not any(each.number > number and number not in each.keep for each in published.values()):
                yield f"{name_of(number)} is gone, and nothing had dropped it"


def _is_passed_over(generation: Summary | None) -> bool:
    return generation is not None and not (generation.complete and generation.healthy)


def passed_over(went_on_from: int | None, published: Mapping[int, Summary], acknowledged: Collection[int]) -> Iterator[str]:
    """Yield of each generation that a resume has passed over by rule that it did, and why."""
    for number in sorted(acknowledged):
        found = published.get(number)
        if went_on_from is not None and number > went_on_from and found is not None and _is_passed_over(found):
            why = "was saved in a hurry, without all of the state" if not found.complete else "has weights that are not finite"
            yield f"{name_of(number)} {why}, and was passed over"


def writers_overlap(summaries: Mapping[int, Summary]) -> bool:
    """Return whether two writers' generations lie among each other: one has published after another had taken over."""
    terms = [summaries[number].term for number in sorted(summaries)]
    return any(later < earlier for earlier, later in pairwise(terms))


def worst(values: Sequence[float | None]) -> float | None:
    """Return the highest of some numbers; None if one of them could not be told."""
    return None if not values or None in values else max(value for value in values if value is not None)


def middle(values: Sequence[float]) -> float:
    """Return the median.

    >>> middle([3, 1, 2]), middle([1, 2])
    (2, 1.5)
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
