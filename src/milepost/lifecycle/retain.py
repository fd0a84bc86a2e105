"""Say what to keep: last N, best K, pinned, the newest healthy one, and what this process stands on.

All is derived from what is on disk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from milepost.errors import UsageError
from milepost.publish.view import View
from milepost.records import Summary


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the ``last`` newest generations and the ``best`` ones by the metric ``by``.

    Whatever these say, the newest healthy generation stays (and the newest that is also complete), pinned ones stay, and
    so does the one which this process resumed from.

    With ``independent=2`` at least two of those that stay share no file with each other, so that one rotten byte leaves
    one that loads whole: about every ``last - 1`` saves a generation is written in full, unchanged arrays too. A full disk
    comes first: a save that has no room for its own copy shares, and the first that has makes up for it.
    """

    last: int = 5
    best: int = 0
    by: str | None = None
    mode: Literal["max", "min"] = "max"
    independent: int = 1

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise UsageError(
                "Keep needs last >= 1 and best >= 0", kind="bad-keep", hint="Keep(last=5)", last=self.last, best=self.best
            )
        if self.best and not self.by:
            raise UsageError(
                "Keep(best=...) needs to know the metric", kind="bad-keep", hint='Keep(last=5, best=1, by="eval/return")'
            )
        if self.mode not in ("max", "min"):
            raise UsageError(
                'mode is "max" or "min"', kind="bad-keep", hint='Keep(best=1, by="eval/loss", mode="min")', mode=self.mode
            )
        if not 1 <= self.independent <= self.last:
            raise UsageError(
                "Keep(independent=...) is at least 1, and at most last: only what is kept can be independent",
                kind="bad-keep",
                hint="Keep(last=5, independent=2)",
                last=self.last,
                independent=self.independent,
            )

    def select(self, live: Mapping[int, Summary], protected: frozenset[int] = frozenset()) -> frozenset[int]:
        """Return the numbers that stay, of ``live`` generations by number. ``protected`` ones stay in any case. Pure."""
        counted = originals(live)
        newest = sorted(counted)[-self.last :]
        kept = frozenset({*newest, *self.best_of(live), *essential(live), *(protected & live.keys())})
        return kept | self._apart(live, kept)

    def wants_copy(self, live: Mapping[int, Summary], line: Collection[int], shared: Collection[str]) -> bool:
        """Return whether the next generation is to share nothing with older ones, though it could share these blobs.

        ``live`` are the generations before it, ``line`` those that its state goes back to. It is, where too few of the
        ``last`` newest would share no blob. Older ones that stay as well do not count: in a year they are a year old.
        """
        if self.independent == 1 or not shared:
            return False
        window = sorted(originals(live))[1 - self.last :]
        older = _sound_ones({number: summary for number, summary in originals(live).items() if number in line})
        recent = [summary for summary in older if summary.number in window]
        others = older[: max(len(recent), self.independent - 1)]
        # A copy that helps nobody is not made: where nothing else is healthy there is nothing to be independent of.
        return len(disjoint(others, shared)) < min(self.independent - 1, len(disjoint(others)))

    def _apart(self, live: Mapping[int, Summary], kept: frozenset[int]) -> frozenset[int]:
        """Return which must stay so that enough share no blob: none, where enough of ``kept`` do not."""
        if self.independent == 1:
            return frozenset()
        sound = _sound_ones(line_of(originals(live)))
        if len(disjoint([summary for summary in sound if summary.number in kept])) >= self.independent:
            return frozenset()
        return frozenset(disjoint(sound)[: self.independent])

    def best_of(self, live: Mapping[int, Summary]) -> tuple[int, ...]:
        """Return the ``best`` numbers by the metric, best first. NaN is never best; ties go to the newer one.

        Only of the newest one's line: what a rollback or a fresh start left behind is not this training's best.
        """
        return rank(line_of(originals(live)), self.by, self.mode)[: self.best] if self.by else ()


def rank(live: Mapping[int, Summary], by: str, mode: Literal["max", "min"] = "max") -> tuple[int, ...]:
    """Return the numbers of the healthy generations that carry a value of metric ``by``, best first."""
    sign = 1.0 if mode == "max" else -1.0
    scored = [
        (sign * summary.metrics[by].number, number)
        for number, summary in originals(live).items()
        if by in summary.metrics and not math.isnan(summary.metrics[by].number) and summary.healthy
    ]
    return tuple(number for _, number in sorted(scored, reverse=True))


def disjoint(generations: Iterable[Summary], taken: Collection[str] = ()) -> tuple[int, ...]:
    """Return the numbers of those that share no blob with each other, nor with ``taken``; the first ones given come first."""
    named, found = set(taken), []
    for summary in generations:
        blobs = {blob.name for blob in summary.blobs}
        if named.isdisjoint(blobs):
            named |= blobs
            found.append(summary.number)
    return tuple(found)


def _sound_ones(live: Mapping[int, Summary]) -> list[Summary]:
    """Return the generations that a resume would take, newest first."""
    counted = originals(live)
    return [counted[number] for number in sorted(counted, reverse=True) if counted[number].healthy and counted[number].complete]


def line_of(live: Mapping[int, Summary]) -> Mapping[int, Summary]:
    """Return those that the newest generation's state goes back to, itself included (rule 27)."""
    line = frozenset(live[max(live)].line) if live else frozenset()
    return {number: summary for number, summary in live.items() if number in line}


def originals(live: Mapping[int, Summary]) -> dict[int, Summary]:
    """Return ``live`` without those whose content a later trim repeats: a trim is not one more generation."""
    repeated = {summary.trim_of for summary in live.values()}
    return {number: summary for number, summary in live.items() if number not in repeated}


def essential(live: Mapping[int, Summary]) -> frozenset[int]:
    """Return what no retention may take: the newest, the newest healthy and complete ones, what a change of base left behind."""
    counted = originals(live)
    # Those of the newest one's line, too: a fallback goes to no others, however new they are (rule 27).
    return frozenset(_ends(counted) | _ends(line_of(counted)) | _left_behind(counted))


def _ends(counted: Mapping[int, Summary]) -> set[int]:
    healthy = [number for number, summary in counted.items() if summary.healthy]
    complete = [number for number in healthy if counted[number].complete]
    return {max(numbers) for numbers in (list(counted), healthy, complete) if numbers}


def _left_behind(counted: Mapping[int, Summary]) -> set[int]:
    """Return what stood before the base last changed, until two generations exist after that (rule 27).

    A resume of an older generation, a rollback, a fresh start: should the first generation after it be damaged, or the
    decision have been a mistake, all that there was is still there.
    """
    turn = max((number for number, summary in counted.items() if summary.rollback_to is not None), default=None)
    if turn is None or sum(number >= turn for number in counted) >= 2:
        return set()
    return {number for number in counted if number < turn}


def resumable(view: View, sound: Collection[int]) -> int | None:
    """Return which of the live generations ``sound`` a resume would take: the newest complete and healthy one; None if none."""
    line = view.line
    healthy = [number for number in sound if number in line and line[number].healthy and not _barred(view, number)]
    complete = [number for number in healthy if view.live[number].complete]
    return max(complete or healthy, default=None)


def _barred(view: View, number: int) -> bool:
    mark = view.marks.get(number)
    return mark is not None and mark.kind == "kills-loader"
