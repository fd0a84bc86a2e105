"""What each rank gets of the places that other ranks have saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from milepost.pytorch.recover.epochs import shares_of
from milepost.pytorch.recover.frontier import TrainedFrontier
from milepost.pytorch.recover.sharing import reshare, same
from tests.pytorch.recover.loaders import Plain, numbers, torchdata


def loader(rank: int, ranks: int) -> StatefulDataLoader[Any]:
    data = list(range(16))
    return StatefulDataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=ranks, rank=rank, seed=3))


def drawn(loader: Any, count: int) -> TrainedFrontier:
    frontier = TrainedFrontier(loader)
    for _ in range(count):
        frontier.trained(frontier.draw()[0])
    return frontier


def test_as_many_ranks_get_what_they_have_saved() -> None:
    found = reshare(["a", "b"], 2, shares=2)
    assert (found.states, found.inexact) == (("a", "b"), ())


@pytest.mark.parametrize("ranks", [1, 4])
def test_where_all_were_at_one_place_all_get_it(ranks: int) -> None:
    states = [drawn(torchdata(16), 3).state_dict() for _ in range(2)]
    found = reshare(states, ranks)
    assert not found.inexact
    for state in found.states:
        frontier = TrainedFrontier(torchdata(16))
        frontier.load_state_dict(state)
        assert frontier.frontier == 3


@pytest.mark.parametrize("states", [[{"place": 1}, {"place": 2}], []])
def test_where_each_was_at_a_place_of_its_own_none_gets_any_and_that_is_said(states: list[Any]) -> None:
    found = reshare(states, 3)
    assert found.states == (None, None, None)
    assert "place of its own" in found.inexact[0]


def test_equal_places_in_shares_of_an_epoch_are_not_taken_over() -> None:
    plain = [loader(rank, 2) for rank in range(2)]
    for one in plain:
        next(iter(one))
    states = [one.state_dict() for one in plain]
    assert same(*states)
    found = reshare(states, 4, shares=shares_of(loader(0, 4)))
    assert found.states == (None,) * 4
    assert "share each epoch" in found.inexact[0]


def test_a_frontier_in_shares_of_an_epoch_begins_that_epoch_anew_on_other_ranks() -> None:
    frontiers = [drawn(loader(rank, 2), 6) for rank in range(2)]  # epochs of 4 batches for each
    frontiers[1].dropped(frontiers[1].draw()[0], reason="stale")
    frontiers[1].draw()
    found = reshare([one.state_dict() for one in frontiers], 4)
    assert "epoch 1 begins anew" in found.inexact[0]
    seen: list[int] = []
    for rank, state in enumerate(found.states):
        live = loader(rank, 4)
        frontier = TrainedFrontier(live)
        frontier.load_state_dict(state)
        assert frontier.dropped_by_reason == ({"stale": 1} if rank == 0 else {})
        assert frontier.state_dict()["epoch"] == 1
        given = dict(frontier)
        assert min(given) == 8  # ordinals are not given out again
        seen += [one for batch in given.values() for one in numbers(batch)]
        expected = loader(rank, 4)
        expected.sampler.set_epoch(1)
        assert [numbers(batch) for batch in given.values()] == [numbers(batch) for batch in expected]
    assert sorted(seen) == list(range(16))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (float("nan"), float("nan"), True),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16), False),
        (torch.tensor(1), torch.tensor(2), False),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        ("x", "x", True),
    ],
)
def test_states_are_compared_bit_for_bit(one: Any, other: Any, expected: bool) -> None:
    assert same(one, other) is expected


def test_what_a_plain_loader_says_of_shares() -> None:
    assert shares_of(Plain(2)) is None
    assert shares_of(loader(1, 2)) == 2
