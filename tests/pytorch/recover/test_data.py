"""A handler brings the place in the data back, on as many ranks and on others; and the generators of each rank to that rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from milepost.errors import MismatchError
from milepost.pytorch import Evaluator, RecoverHandler, TrainedFrontier, TrainEngine
from tests.pytorch.dcp.ranks import run
from tests.pytorch.recover.loaders import distributed, numbers, torchdata
from tests.pytorch.recover.training import at


def handler(place: Path) -> RecoverHandler:
    return RecoverHandler(place, experiment="ppo", trial="t1", user="ann", mode="on", freq_steps=1, retries=0)


def engines() -> dict[str, TrainEngine]:
    model = torch.nn.Linear(1, 1)
    return {"default": TrainEngine(model, torch.optim.SGD(model.parameters(), lr=0.1))}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_under_way_when_a_run_ends_is_trained_by_the_next_once(tmp_path: Path, workers: int) -> None:
    alone = [numbers(batch) for _, batch in zip(range(12), _endless(TrainedFrontier(torchdata(10, workers))), strict=False)]
    frontier = TrainedFrontier(torchdata(10, workers))
    with handler(tmp_path) as first:
        first.load(engines(), dataloader=frontier)
        drawn = dict(frontier.draw() for _ in range(8))
        frontier.trained(0, 1, 4, 6)
        frontier.dropped(3, reason="stale")
        first.dump(engines(), at(0), dataloader=frontier)
        frontier.trained(2)  # and its weights are lost with the process
    again = TrainedFrontier(torchdata(10, workers))
    with handler(tmp_path) as second:
        info = second.load(engines(), dataloader=again)
    assert info is not None
    assert info.exact
    assert again.dropped_by_reason == {"stale": 1}
    found = dict(again.draw() for _ in range(7))
    assert {ordinal: numbers(batch) for ordinal, batch in found.items()} == {
        ordinal: alone[ordinal] for ordinal in (2, 5, 7, 8, 9, 10, 11)
    }
    assert [numbers(batch) for batch in drawn.values()] == alone[:8]


def _endless(frontier: TrainedFrontier) -> Any:
    while True:
        ordinal, batch = frontier.draw()
        frontier.trained(ordinal)
        yield batch


def test_a_loader_that_is_another_one_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    frontier = TrainedFrontier(torchdata(10))
    frontier.draw()
    with handler(tmp_path) as first:
        first.dump(engines(), at(0), dataloader=frontier)
    live = engines()
    before = live["default"].model.state_dict()["weight"].clone()
    with handler(tmp_path) as second:
        with pytest.raises(MismatchError, match="data/workers: saved 0, here 2"):
            second.load(live, dataloader=TrainedFrontier(torchdata(10, 2)))
        assert torch.equal(live["default"].model.state_dict()["weight"], before)


def test_counters_of_an_evaluator_come_back(tmp_path: Path) -> None:
    evaluated: list[int] = []
    begin = 0
    for end in (6, 11, 20):  # started three times
        evaluator, live = Evaluator(freq_steps=4), engines()
        with handler(tmp_path) as one:
            info = one.load(live, evaluator=evaluator)
            begin = info.last_step_info.next().global_step if info else 0
            for step in range(begin, end):
                if evaluator.due(at(step)):
                    evaluated.append(step)
                    evaluator.evaluated(at(step))
                one.dump(live, at(step), evaluator=evaluator)
    assert evaluated == [3, 7, 11, 15, 19]


def shared(rank: int, ranks: int) -> TrainedFrontier:
    data = list(range(16))
    return TrainedFrontier(
        StatefulDataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=ranks, rank=rank, seed=3))
    )


def save_on_two(rank: int, place: Path) -> None:
    torch.manual_seed(rank)
    frontier = shared(rank, 2)
    with handler(place / "two") as one:
        for _ in range(6):  # epochs of 4 batches
            frontier.trained(frontier.draw()[0])
        one.dump(engines(), at(0), dataloader=frontier)


def load_on_two(rank: int, place: Path) -> Any:
    torch.manual_seed(100 + rank)
    frontier = TrainedFrontier(torchdata(10))
    with handler(place / "one") as one:
        info = one.load(engines(), dataloader=frontier)
    assert info is not None
    drawn = numbers(frontier.draw()[1])
    own = shared(rank, 2)
    with handler(place / "two") as one:
        same = one.load(engines(), dataloader=own)
    assert same is not None
    return info.inexact, drawn, same.inexact, own.frontier, torch.initial_seed()


def both(rank: int, place: Path) -> Any:
    save_on_two(rank, place)
    return load_on_two(rank, place)


def test_other_ranks_get_what_was_the_same_on_all_and_else_the_epoch_and_no_generators(tmp_path: Path) -> None:
    torch.manual_seed(50)
    frontier = TrainedFrontier(torchdata(10))
    expected = [numbers(batch) for _, batch in zip(range(3), _endless(frontier), strict=False)][2]
    frontier = TrainedFrontier(torchdata(10))
    for _ in range(2):
        frontier.trained(frontier.draw()[0])
    with handler(tmp_path / "one") as one:
        one.dump(engines(), at(0), dataloader=frontier)
    for rank, (inexact, drawn, same, first, seed) in enumerate(run(2, both, tmp_path, tmp_path)):
        assert "rng: each rank's generators stay as they are, since another number of ranks has saved" in inexact
        assert not any(why.startswith("data") for why in inexact)
        assert drawn == expected
        assert same == ()
        assert first == 6
        assert seed == rank
    frontier = TrainedFrontier(distributed(16))
    with handler(tmp_path / "two") as one:
        info = one.load(engines(), dataloader=frontier)
    assert info is not None
    assert any("epoch 1 begins anew, and some of it is trained twice" in why for why in info.inexact)
    assert len(list(frontier)) == 8
    assert frontier.epoch == 2  # that one is over
