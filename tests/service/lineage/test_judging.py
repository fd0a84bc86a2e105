"""What a batch is worth: by the weights that made it, first of all whether they are any that survive. C7, C10, C12"""

from __future__ import annotations

import pytest

from milepost.errors import UsageError
from milepost.service.core.records import Commit, Committed, RolledBack
from milepost.service.lineage.judging import Verdict, judge
from milepost.service.lineage.records import Batch, Source, Span
from milepost.service.lineage.settings import Lineage
from tests.service.lineage.world import catalogue, weights


def batch(*numbers: int, accepted_ns: int = 0) -> Batch:
    spans = tuple(Span(Commit(1, number), 4) for number in numbers)
    return Batch(0, Source("s", "i", 0), spans, 1, "d", 0, accepted_ns)


LINE = catalogue(*(weights(number, 10 * number, number - 1 or None) for number in range(1, 6)))


@pytest.mark.parametrize(
    ("made_by", "step", "now_ns", "settings", "verdict"),
    [
        ((5,), 50, 0, Lineage(), Verdict("use")),
        ((5,), 51, 0, Lineage(), Verdict("down-weight", weight=0.5, gap=1)),
        ((5,), 52, 0, Lineage(), Verdict("down-weight", weight=0.25, gap=2)),
        ((5,), 53, 0, Lineage(), Verdict("drop", "gap", 0.0, 3)),
        ((5, 4), 50, 0, Lineage(), Verdict("drop", "gap", 0.0, 10)),
        ((4, 5), 50, 0, Lineage(max_version_gap=10), Verdict("down-weight", weight=0.5**10, gap=10)),
        ((5,), 52, 0, Lineage(down_weight=1), Verdict("use", gap=2)),
        ((5,), 53, 0, Lineage(alert_only=True), Verdict("down-weight", "gap", 0.25, 3, is_alert=True)),
        ((5,), 50, 8, Lineage(max_age_ns=8), Verdict("use")),
        ((5,), 50, 9, Lineage(max_age_ns=8), Verdict("drop", "age", 0.0)),
        ((5,), 50, 9, Lineage(max_age_ns=8, alert_only=True), Verdict("use", "age", is_alert=True)),
        ((5,), 0, -5, Lineage(max_age_ns=8), Verdict("use")),  # clocks that go back make nothing old
        ((6,), 50, 0, Lineage(), Verdict("drop", "unknown-version", 0.0)),
        ((6,), 50, 0, Lineage(alert_only=True), Verdict("drop", "unknown-version", 0.0)),
    ],
)
def test_gap_and_age(made_by: tuple[int, ...], step: int, now_ns: int, settings: Lineage, verdict: Verdict) -> None:
    assert judge(batch(*made_by), LINE, Commit(1, 5), step, now_ns, settings, is_settled=True) == verdict


def test_what_a_rollback_left_is_orphaned_before_any_other_rule() -> None:
    seen = catalogue(*(weights(number, number, number - 1 or None) for number in range(1, 6)))
    seen.apply(RolledBack(Commit(1, 3), "it got worse"))
    for settings in (Lineage(), Lineage(alert_only=True)):
        verdict = judge(batch(3, 5), seen, Commit(1, 3), 100, 0, settings, is_settled=False)
        assert verdict == Verdict("drop", "orphaned", 0.0)


def test_data_of_a_trainer_that_died_waits_until_training_has_come_there_again() -> None:
    seen = catalogue(weights(1, 1, None), weights(2, 2, 1), weights(3, 3, 2, "x"))
    data = batch(3)
    assert judge(data, seen, Commit(1, 1), 1, 0, Lineage(), is_settled=False).kind == "to verify"
    assert judge(data, seen, Commit(1, 1), 1, 0, Lineage(), is_settled=True) == Verdict("drop", "orphaned", 0.0)
    seen.apply(Committed(weights(4, 2, 1, "d2")))
    assert judge(batch(2), seen, Commit(1, 4), 2, 0, Lineage(), is_settled=False) == Verdict("use")
    assert judge(data, seen, Commit(1, 4), 2, 0, Lineage(), is_settled=False).reason == "orphaned"
    other = catalogue(*seen.weights.values())
    other.apply(Committed(weights(5, 4, 4, "x")))
    assert judge(data, other, Commit(1, 5), 4, 0, Lineage(), is_settled=False).reason == "orphaned"
    seen.apply(Committed(weights(5, 3, 4, "x")))  # the very same weights again, bit for bit
    assert judge(data, seen, Commit(1, 5), 3, 0, Lineage(), is_settled=False) == Verdict("use")
    seen.apply(Committed(weights(6, 4, 5, "x")))  # the same bits at another step are another version
    assert judge(batch(3, 6), seen, Commit(1, 6), 4, 0, Lineage(), is_settled=False).kind == "down-weight"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_version_gap": -1},
        {"down_weight": -0.1},
        {"down_weight": 1.5},
        {"down_weight": float("nan")},
        {"max_age_ns": -1},
        {"limit_bytes": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        Lineage(**wrong)  # type: ignore[arg-type]
    assert caught.value.kind == "bad-setting"
