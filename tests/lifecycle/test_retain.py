"""What is kept, against a plain definition of it; NaN, ties and missing metrics are where others lose their best model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.lifecycle.retain import Keep, essential, originals, rank
from milepost.records import Summary
from tests.publish.summaries import generation

NAN, INF = float("nan"), float("inf")


def run(*summaries: Summary) -> dict[int, Summary]:
    """Return generations which all go back to those before them, unless they say otherwise."""
    numbers = [summary.number for summary in summaries]
    return {s.number: s if len(s.line) > 1 else replace(s, line=tuple(n for n in numbers if n <= s.number)) for s in summaries}


def scores(*values: float | None) -> dict[int, Summary]:
    """Return generations 1, 2, 3 ... which carry these scores; None carries none."""
    return run(*(generation(n, metrics=None if value is None else {"score": value}) for n, value in enumerate(values, 1)))


RANKS = {
    "best first": ("max", (1.0, 3.0, 2.0), (2, 3, 1)),
    "least first": ("min", (1.0, 3.0, 2.0), (1, 3, 2)),
    "ties go to the newer": ("max", (5.0, 5.0, 1.0, 5.0), (4, 2, 1, 3)),
    "ties go to the newer of the least, too": ("min", (5.0, 5.0, 1.0, 1.0), (4, 3, 2, 1)),
    "NaN is never best": ("max", (NAN, 1.0, NAN), (2,)),
    "NaN is never least": ("min", (NAN, 1.0, NAN), (2,)),
    "all NaN": ("max", (NAN, NAN), ()),
    "without the metric is not ranked": ("max", (None, 1.0, None), (2,)),
    "infinities have their places": ("max", (-INF, 0.0, INF), (3, 2, 1)),
    "zeros of both signs tie": ("max", (0.0, -0.0), (2, 1)),
    "nothing": ("max", (), ()),
}


@pytest.mark.parametrize("case", RANKS)
def test_the_order_by_a_metric_is(case: str) -> None:
    mode, values, expected = RANKS[case]
    assert rank(scores(*values), "score", mode) == expected  # type: ignore[arg-type]


def test_an_unhealthy_generation_is_never_best() -> None:
    assert rank(run(generation(1, metrics={"s": 9}, healthy=False), generation(2, metrics={"s": 1})), "s") == (2,)


NUMBERS = range(1, 7)
KEPT = {
    "the newest": (Keep(last=2), run(*map(generation, NUMBERS)), (), {5, 6}),
    "fewer than asked for": (Keep(last=9), run(*map(generation, NUMBERS)), (), {1, 2, 3, 4, 5, 6}),
    "the best beside the newest": (Keep(last=1, best=1, by="score"), scores(3, 9, 1, 2), (), {2, 4}),
    "several best": (Keep(last=1, best=2, by="score"), scores(3, 9, 1, 2), (), {1, 2, 4}),
    "the best is the newest": (Keep(last=1, best=1, by="score"), scores(3, 4), (), {2}),
    "the least": (Keep(last=1, best=1, by="score", mode="min"), scores(3, 9, 1, 2), (), {3, 4}),
    "no best without a value": (Keep(last=1, best=2, by="score"), scores(NAN, None, NAN), (), {3}),
    "what is pinned": (Keep(last=1), run(*map(generation, NUMBERS)), (2,), {2, 6}),
    "no pin makes a dead one live": (Keep(last=1), run(*map(generation, NUMBERS)), (9,), {6}),
    "the newest healthy one": (
        Keep(last=2),
        run(generation(1), generation(2), *(generation(n, healthy=False) for n in (3, 4, 5))),
        (),
        {2, 4, 5},
    ),
    "the newest that is also complete": (
        Keep(last=1),
        run(generation(1), generation(2, complete=False), generation(3, complete=False)),
        (),
        {1, 3},
    ),
    "complete but sick does not count": (
        Keep(last=1),
        run(generation(1), generation(2, healthy=False), generation(3, complete=False)),
        (),
        {1, 3},
    ),
    "a trim is not one more": (
        Keep(last=2),
        run(generation(1), generation(2), generation(3), generation(4, trim_of=3)),
        (),
        {2, 4},
    ),
    "a trim of a trim": (
        Keep(last=2),
        run(generation(1), generation(3), generation(4, trim_of=3), generation(5, trim_of=4)),
        (),
        {1, 5},
    ),
    "a pinned one that a trim repeats": (
        Keep(last=1),
        run(generation(1), generation(2), generation(3, trim_of=2)),
        (2,),
        {2, 3},
    ),
    "all that stood before a fresh start, at its first": (
        Keep(last=1),
        run(generation(1), generation(2), generation(3, rollback_to=0)),
        (),
        {1, 2, 3},
    ),
    "nothing of that from the second on": (
        Keep(last=1),
        run(generation(1), generation(2), generation(3, rollback_to=0), generation(4)),
        (),
        {4},
    ),
    "a trim of a fresh start is not the second": (
        Keep(last=1),
        run(generation(1), generation(3, rollback_to=0), generation(4, rollback_to=0, trim_of=3)),
        (),
        {1, 4},
    ),
    "all that stood before a rollback, at its first": (
        Keep(last=1),
        run(generation(1), generation(2), generation(3, rollback_to=1)),
        (),
        {1, 2, 3},
    ),
    "nothing of that from the second on either": (
        Keep(last=1),
        run(generation(1), generation(2), generation(3, rollback_to=1), generation(4)),
        (),
        {4},
    ),
    "the best of what the newest goes back to": (
        Keep(last=1, best=1, by="score"),
        run(
            generation(1, metrics={"score": 1.0}),
            generation(2, metrics={"score": 9.0}),
            generation(3, rollback_to=1, line=[1]),
            generation(4, line=[1, 3]),
        ),
        (),
        {1, 4},
    ),
    "the newest complete one that the newest goes back to, beside a newer one that was left behind": (
        Keep(last=1),
        run(
            generation(1),
            generation(2, line=[1]),
            generation(3, rollback_to=1, line=[1], complete=False),
            generation(4, line=[1, 3], complete=False),
        ),
        (),
        {1, 2, 4},
    ),
    "what shares no file with the newest, where all newer ones share one": (
        Keep(last=2, independent=2),
        run(generation(1, blobs="a"), generation(2, blobs="b"), generation(3, blobs="bc"), generation(4, blobs="bd")),
        (),
        {1, 3, 4},
    ),
    "no more than that, where two of the newest share none": (
        Keep(last=3, independent=2),
        run(generation(1, blobs="a"), generation(2, blobs="b"), generation(3, blobs="bc"), generation(4, blobs="d")),
        (),
        {2, 3, 4},
    ),
    "no sick or hurried one for it": (
        Keep(last=2, independent=2),
        run(
            generation(1, blobs="a"),
            generation(2, blobs="b", healthy=False),
            generation(3, blobs="c", complete=False),
            generation(4, blobs="d"),
            generation(5, blobs="d"),
        ),
        (),
        {1, 4, 5},
    ),
    "nothing": (Keep(), {}, (1,), set()),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept_are(case: str) -> None:
    keep, live, protected, expected = KEPT[case]
    assert keep.select(live, frozenset(protected)) == expected


@pytest.mark.parametrize(
    "setting",
    [
        *({"last": 0}, {"last": -1}, {"best": -1}, {"best": 1}, {"best": 1, "by": ""}, {"mode": "most", "by": "x"}),
        *({"independent": 0}, {"independent": -1}, {"last": 1, "independent": 2}, {"independent": 6}),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        Keep(**setting)  # type: ignore[arg-type]
    assert caught.value.kind == "bad-keep"


# --- against a plain definition -----------------------------------------------------------------------------------------

values = st.none() | st.sampled_from([0.0, 1.0, 1.0, 2.0, -1.0, NAN, INF, -INF])


@st.composite
def histories(draw: st.DrawFn) -> dict[int, Summary]:
    live: dict[int, Summary] = {}
    for number in sorted(draw(st.sets(st.integers(1, 12), max_size=8))):
        value = draw(values)
        live[number] = generation(
            number,
            healthy=draw(st.booleans()),
            complete=draw(st.booleans()),
            trim_of=draw(st.sampled_from([None, None, number - 1])),
            rollback_to=draw(st.sampled_from([None, None, None, 0, 1])),
            metrics=None if value is None else {"score": value},
            blobs=draw(st.sets(st.sampled_from("abcdef"), min_size=1, max_size=2)),
            line=draw(st.sets(st.sampled_from(sorted(live)), max_size=8)) if live else (),
        )
    return live


bests = {"best": st.integers(0, 3), "by": st.just("score"), "mode": st.sampled_from(["max", "min"])}
keeps = st.integers(1, 4).flatmap(
    lambda last: st.builds(Keep, last=st.just(last), independent=st.integers(1, min(last, 3)), **bests)  # type: ignore[arg-type]
)


def plain_selection(keep: Keep, live: dict[int, Summary], protected: set[int]) -> set[int]:
    """Say the same in the words of the design, slowly."""
    repeated = [s.trim_of for s in live.values() if s.trim_of is not None]
    counted = [n for n in sorted(live) if n not in repeated]
    kept = set(counted[-keep.last :])
    candidates = []
    line = live[max(live)].line if live else ()
    for n in (n for n in counted if n in line):
        metric = live[n].metrics.get("score")
        if live[n].healthy and metric is not None and not math.isnan(metric.number):
            candidates.append(n)
    for _ in range(keep.best):
        if not candidates:
            break
        best = candidates[0]
        for n in candidates[1:]:
            a, b = live[n].metrics["score"].number, live[best].metrics["score"].number
            if a == b or (a > b) == (keep.mode == "max"):  # later ones are newer, and win a tie
                best = n
        kept.add(best)
        candidates.remove(best)
    for good in (
        [n for n in counted if live[n].healthy],
        [n for n in counted if live[n].healthy and live[n].complete],
        [n for n in counted if n in line and live[n].healthy],
        [n for n in counted if n in line and live[n].healthy and live[n].complete],
    ):
        kept |= set(good[-1:])
    fresh = [n for n in counted if live[n].rollback_to is not None]
    if fresh and len([n for n in counted if n >= fresh[-1]]) < 2:
        kept |= {n for n in counted if n < fresh[-1]}
    kept |= protected & set(live)
    good = [n for n in reversed(counted) if n in line and live[n].healthy and live[n].complete]
    if len(apart(live, [n for n in good if n in kept])) < keep.independent > 1:
        kept |= set(apart(live, good)[: keep.independent])
    return kept


def apart(live: dict[int, Summary], numbers: list[int]) -> list[int]:
    """Return those that share no blob, each taken if it shares none with those before it."""
    found: list[int] = []
    for n in numbers:
        if not any({blob.name for blob in live[n].blobs} & {blob.name for blob in live[m].blobs} for m in found):
            found.append(n)
    return found


@given(keeps, histories(), st.sets(st.integers(1, 12), max_size=3))
def test_selection_agrees_with_its_plain_definition(keep: Keep, live: dict[int, Summary], protected: set[int]) -> None:
    assert keep.select(live, frozenset(protected)) == plain_selection(keep, live, protected)


@given(keeps, histories())
def test_selecting_again_from_what_was_kept_takes_nothing_more(keep: Keep, live: dict[int, Summary]) -> None:
    kept = keep.select(live)
    assert keep.select({n: live[n] for n in kept}) <= kept


@given(keeps, histories())
def test_the_newest_and_the_newest_healthy_always_stay(keep: Keep, live: dict[int, Summary]) -> None:
    kept, counted = keep.select(live), originals(live)
    assert essential(live) <= kept
    if counted:
        assert max(counted) in kept
    healthy = [n for n in counted if live[n].healthy]
    assert not healthy or max(healthy) in kept


def test_one_sick_metric_does_not_push_out_the_best_of_a_long_run() -> None:
    keep, live = Keep(last=2, best=1, by="score"), {}
    for number, value in enumerate([1.0, 7.0, NAN, 3.0, NAN, NAN, 2.0], 1):
        live[number] = generation(number, metrics={"score": value}, line=live)
        live = {n: live[n] for n in keep.select(live)}
    assert set(live) == {2, 6, 7}
