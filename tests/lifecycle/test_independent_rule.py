"""`Keep(independent=2)`: enough of what stays shares no file, whatever a run goes through, at a bounded cost. DESIGN 4 ▲, B8"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import combinations

from hypothesis import example, given
from hypothesis import strategies as st

from milepost.lifecycle.retain import Keep, disjoint, essential, originals
from milepost.records import Summary
from tests.publish.summaries import generation

LEAVES = ("frozen", "slow", "fast")
Event = tuple[str, int, bool, bool]


class Run:
    """Save, trim, roll back and resume as the engine does, with sets of names for blobs."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.live: dict[int, Summary] = {}
        self.places: dict[int, dict[str, str]] = {}
        self.base = 0
        self.resumed_from: frozenset[int] = frozenset()
        self.number = 0
        self.copies: list[int] = []
        self.disturbed = False

    def line(self) -> frozenset[int]:
        base = self.live.get(self.base)
        return frozenset({base.number, *base.line} & self.live.keys()) if base else frozenset()

    def sound(self) -> list[Summary]:
        """Return what a resume would take of what the newest goes back to, newest first."""
        line = self.live[max(self.live)].line if self.live else ()
        counted = originals(self.live)
        return [counted[n] for n in sorted(counted, reverse=True) if n in line and counted[n].healthy and counted[n].complete]

    def save(self, changed: Collection[str], healthy: bool, complete: bool) -> None:
        old, blob = self.places.get(self.base, {}), f"b{self.number + 1}"
        places = {leaf: blob if leaf in changed else old.get(leaf, blob) for leaf in LEAVES}
        if complete and self.keep.wants_copy(self.live, self.line(), {name for name in places.values() if name != blob}):
            places = dict.fromkeys(LEAVES, blob)
            self.copies.append(self.number + 1)
        turned = self.live and self.base != max(self.live)
        made = generation(self.number + 1, healthy=healthy, complete=complete, rollback_to=self.base if turned else None)
        self.publish(made, places, lambda live: self.keep.select(live, self.resumed_from))

    def publish(self, made: Summary, places: dict[str, str], keep: object) -> None:
        self.number += 1
        blobs = generation(1, blobs=sorted(set(places.values()))).blobs
        made = dataclasses.replace(made, number=self.number, line=(*sorted(self.line()), self.number), blobs=blobs)
        kept = keep({**self.live, self.number: made})  # type: ignore[operator]
        self.live = {n: s for n, s in {**self.live, self.number: made}.items() if n in kept}
        self.places[self.number] = places
        self.base = self.number

    def trim(self) -> None:
        """Do as on a full disk: the oldest that may go goes, independent or not."""
        head = max(self.live, default=0)
        going = min((n for n in originals(self.live) if n not in essential(self.live)), default=None)
        if going is not None and self.base == head:
            again = dataclasses.replace(self.live[head], trim_of=head)
            self.publish(again, self.places[head], lambda live: live.keys() - {going, head})
            self.disturbed = True

    def rollback(self, pick: int) -> None:
        if len(self.live) > 1:
            target = sorted(self.live)[pick % (len(self.live) - 1)]
            self.base = target
            self.publish(dataclasses.replace(self.live[target], rollback_to=target), self.places[target], lambda live: set(live))
            self.resumed_from = frozenset({self.number})
            self.disturbed = True

    def resume(self, pick: int) -> None:
        if self.live:
            self.base = sorted(self.live)[pick % len(self.live)]
            self.resumed_from = frozenset({self.base})
            self.disturbed = True

    def do(self, event: Event) -> None:
        what, pick, healthy, complete = event
        if what != "save":
            getattr(self, what)(*([] if what == "trim" else [pick]))
            return
        before = self.before()
        self.save([leaf for bit, leaf in enumerate(LEAVES) if pick >> bit & 1], healthy, complete)
        self.check(before, fresh=healthy and complete)

    def before(self) -> int:
        """Return how many of what the next save goes back to share no blob."""
        line = self.line()
        counted = originals(self.live)
        sound = [counted[n] for n in sorted(counted, reverse=True) if n in line and counted[n].healthy and counted[n].complete]
        return len(disjoint(sound))

    def check(self, before: int, *, fresh: bool) -> None:
        """Check what must hold after every save: no fewer than before, one more with each, up to as many as asked for."""
        wanted, sound = self.keep.independent, self.sound()
        least = min(wanted, before + fresh)
        if not self.disturbed:
            least = min(wanted, len(sound))
        names = [{blob.name for blob in summary.blobs} for summary in sound]
        assert any(all(a.isdisjoint(b) for a, b in combinations(several, 2)) for several in combinations(names, least)), (
            f"of {sorted(self.live)} no {least} share no blob"
        )


def event(*kinds: str) -> st.SearchStrategy[Event]:
    usually = st.sampled_from([True, True, True, False])
    return st.tuples(st.sampled_from(kinds), st.integers(0, 7), usually, usually)


keeps = st.integers(1, 6).flatmap(lambda last: st.builds(Keep, last=st.just(last), independent=st.integers(1, min(last, 3))))


@given(keeps, st.lists(event("save"), max_size=25))
@example(Keep(last=2, independent=2), [("save", 4, True, True), *[("save", 4, True, False)] * 2, ("save", 4, True, True)])
def test_after_every_save_as_many_as_asked_for_share_no_file_whenever_that_many_exist(keep: Keep, events: list[Event]) -> None:
    run = Run(keep)
    for one in events:
        run.do(one)


@given(keeps, st.lists(event("save", "save", "save", "trim", "rollback", "resume"), max_size=25))
def test_what_a_trim_or_a_change_of_base_took_the_saves_after_it_make_up_for(keep: Keep, events: list[Event]) -> None:
    run = Run(keep)
    for one in events:
        run.do(one)
    for _ in range(keep.independent):
        run.do(("save", 4, True, True))
    names = [{blob.name for blob in summary.blobs} for summary in run.sound()]
    several = combinations(names, keep.independent)
    assert any(all(a.isdisjoint(b) for a, b in combinations(each, 2)) for each in several)


@given(keeps, st.lists(st.integers(0, 7), max_size=40))
def test_a_copy_is_made_about_every_last_saves_and_never_without_being_asked_for(keep: Keep, changes: list[int]) -> None:
    run = Run(keep)
    for changed in changes:
        run.do(("save", changed, True, True))
    if keep.independent == 1:
        assert run.copies == []
    # In any ``last - independent + 1`` saves in a row no more copies than it takes to have that many apart.
    stretch = keep.last - keep.independent + 1
    for first in run.copies:
        assert sum(first <= copy < first + stretch for copy in run.copies) <= keep.independent - 1


def test_the_copies_of_a_run_of_which_one_part_never_changes_come_every_last_less_one_saves() -> None:
    run = Run(Keep(last=5, independent=2))
    for _ in range(20):
        run.do(("save", 4, True, True))
    assert run.copies == [2, 6, 10, 14, 18]
    assert sorted(run.live) == [16, 17, 18, 19, 20], "nothing more stays than would without"


def test_a_run_of_which_everything_changes_is_independent_at_no_cost() -> None:
    run = Run(Keep(last=3, independent=3))
    for _ in range(9):
        run.do(("save", 7, True, True))
    assert run.copies == []


def test_what_never_was_healthy_again_makes_no_copy_after_copy() -> None:
    run = Run(Keep(last=3, independent=2))
    for _ in range(3):
        run.do(("save", 4, True, True))
    for _ in range(20):
        run.do(("save", 4, False, True))
    assert len(run.copies) <= 3
    assert len(disjoint(run.sound())) == 2
