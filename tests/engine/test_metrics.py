"""A number that was reported belongs to one generation, and the best one is not lost on the way."""

from __future__ import annotations

from milepost.engine.metrics import Metrics
from milepost.lifecycle.retain import Keep
from milepost.records import Metric

KEEP = Keep(best=1, by="score")


def take(metrics: Metrics) -> dict[str, Metric]:
    """Do what a save does."""
    taken = metrics.pending()
    metrics.hand_over(taken)
    return taken


def test_a_best_that_a_failed_save_gave_back_is_not_overwritten_by_a_lesser_one() -> None:
    metrics = Metrics(KEEP)
    metrics.report(1, {"score": 9.0, "loss": 0.5})
    metrics.give_back(take(metrics))
    metrics.report(2, {"score": 3.0, "loss": 0.25})
    assert take(metrics) == {"score": Metric((9.0).hex(), 1), "loss": Metric((0.25).hex(), 2)}


def test_what_was_reported_while_a_save_failed_wins_if_it_is_better() -> None:
    metrics = Metrics(KEEP)
    metrics.report(1, {"score": 3.0})
    taken = take(metrics)
    metrics.report(2, {"score": 9.0})
    metrics.give_back(taken)
    assert take(metrics) == {"score": Metric((9.0).hex(), 2)}


def test_a_lesser_one_reported_while_the_best_was_in_flight_gives_way_to_it() -> None:
    metrics = Metrics(KEEP)
    metrics.report(1, {"score": 9.0})
    taken = take(metrics)
    metrics.report(2, {"score": 3.0})
    metrics.give_back(taken)
    assert take(metrics) == {"score": Metric((9.0).hex(), 1)}


def test_a_save_that_failed_is_not_due_again_at_every_safe_point() -> None:
    metrics = Metrics(KEEP)
    metrics.report(1, {"score": 9.0})
    assert metrics.new_best() is not None
    metrics.give_back(take(metrics))
    assert metrics.new_best() is None
