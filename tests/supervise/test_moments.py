"""When a run is killed: spread over it, each time further on, and never at a moment that its own end has passed. B20"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.supervise.moments import Hunt, Moment, plan
from milepost.supervise.watching import Root, Watch


def alone(published: int, gap_s: float = 1.0) -> Watch:
    """Return what was seen of a run that published so many generations, one after the other."""
    root = Root(Path("runs/mine"))
    root.manifests.update(dict.fromkeys(range(1, published + 1)))  # type: ignore[arg-type]
    root.appeared_ns = [round(gap_s * 1e9) * number for number in range(published)]
    return Watch(Path(), FakeClock(), {"mine": root})


def seen(published: int, blobs: int = 0) -> Any:
    return SimpleNamespace(published=published, blobs=blobs)


@given(st.integers(0, 50), st.integers(1, 20), st.sampled_from(["each", "mid-rollout", "during-save", "random"]), st.data())
def test_moments_are_spread_and_each_is_further_on(published: int, kills: int, at: Any, data: st.DataObject) -> None:
    draw = st.floats(0, 1, exclude_max=True)
    moments = plan(alone(published), kills, at, lambda: data.draw(draw))
    counts = [moment.published for moment in moments]
    assert counts == sorted(set(counts))
    assert all(0 < count < published for count in counts)
    assert len(moments) <= kills
    assert bool(moments) == (published > 1)
    if at != "random":
        assert len(moments) == max(0, min(kills, published - 1))


def test_between_two_saves_is_half_the_time_from_one_to_the_next() -> None:
    moments = plan(alone(8, gap_s=2.0), 2, "each", lambda: 0.0)
    assert moments == [Moment(2, wait_ns=1_000_000_000), Moment(6, at_save=True)]


def test_a_kill_between_saves_waits_for_its_generation_and_then_for_its_time() -> None:
    hunt = Hunt(Moment(2, wait_ns=100))
    assert not hunt.is_due(seen(1), 0)
    assert not hunt.is_due(seen(2), 1_000)
    assert not hunt.is_due(seen(2), 1_099)
    assert hunt.is_due(seen(2), 1_100)


def test_it_does_not_miss_the_gap_where_the_next_save_comes_sooner_than_it_did_alone() -> None:
    hunt = Hunt(Moment(2, wait_ns=10**12))
    assert not hunt.is_due(seen(2), 0)
    assert hunt.is_due(seen(3), 1)


def test_a_kill_during_a_save_waits_for_the_first_data_after_its_generation() -> None:
    hunt = Hunt(Moment(2, at_save=True))
    assert not hunt.is_due(seen(1, blobs=2), 0)
    assert not hunt.is_due(seen(2, blobs=3), 1)
    assert not hunt.is_due(seen(2, blobs=3), 10**12)
    assert hunt.is_due(seen(2, blobs=4), 10**12)


def test_a_kill_during_a_save_does_not_wait_for_data_that_came_before_anybody_looked() -> None:
    # A command that stands still after its last save would stand there until the time is up.
    hunt = Hunt(Moment(2, at_save=True))
    assert hunt.is_due(seen(3, blobs=3), 0)


@pytest.mark.parametrize("at", ["each", "random"])
def test_a_run_that_saves_once_has_no_such_moment(at: Any) -> None:
    assert plan(alone(1), 3, at, lambda: 0.5) == []
