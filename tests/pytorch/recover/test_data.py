"""A handler brings the place in the data back, on as many ranks and on others; and the generators of each rank to that rank."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from milepost.errors import MismatchError
from milepost.pytorch import Evaluator, RecoverHandler, TrainedFrontier, TrainEngine
from tests.pytorch.dcp.ranks import attempt, run
from tests.pytorch.recover.loaders import distributed, numbers, torchdata
from tests.pytorch.recover.training import Loader, at


def handler(place: Path, freq_steps: int = 1) -> RecoverHandler:
    return RecoverHandler(place, experiment="ppo", trial="t1", user="ann", mode="on", freq_steps=freq_steps, retries=0)


def engines() -> dict[str, TrainEngine]:
    model = torch.nn.Linear(1, 1)
    return {"default": TrainEngine(model, torch.optim.SGD(model.parameters(), lr=0.1))}


def test_what_is_under_way_when_a_run_ends_is_trained_by_the_next_once(tmp_path: Path) -> None:
    alone = [numbers(batch) for _, batch in zip(range(12), _endless(TrainedFrontier(torchdata(10))), strict=False)]
    frontier = TrainedFrontier(torchdata(10))
    with handler(tmp_path) as first:
        first.load(engines(), dataloader=frontier)
        drawn = dict(frontier.draw() for _ in range(8))
        frontier.trained(0, 1, 4, 6)
        frontier.dropped(3, reason="stale")
        first.dump(engines(), at(0), dataloader=frontier)
        frontier.trained(2)  # and its weights are lost with the process
    again = TrainedFrontier(torchdata(10))
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


def test_a_position_that_nobody_goes_on_from_is_told(tmp_path: Path) -> None:
    live = engines()
    with handler(tmp_path) as one:
        one.dump(live, at(0), dataloader=Loader(), force=True)
    with handler(tmp_path) as one:
        info = one.load(live)
    assert info is not None
    assert [text.partition(":")[0] for text in info.inexact] == ["data"]


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


class History:
    """Hold what was trained, as the checkpoint knows it."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = [list(one) for one in state["trained"]]


STEPS = 12
DROPPED = (4, 11)


def train_until_killed(rank: int, place: Path, kill_at: int) -> Any:
    """Draw ahead, train the newest first, drop a little, save every other step; SIGKILL in the middle of a step."""
    frontier, history, live = TrainedFrontier(torchdata(10)), History(), engines()
    with handler(place, freq_steps=2) as one:
        info = one.load(live, dataloader=frontier, extra={"history": history})
        held: dict[int, Any] = {}
        for step in range(info.last_step_info.next().global_step if info else 0, STEPS):
            while len(held) < 4:
                held.update([frontier.draw()])
            ordinal = max(held) if step % 3 else min(held)
            batch = held.pop(ordinal)
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if ordinal in DROPPED:
                frontier.dropped(ordinal, reason="stale")
            else:
                frontier.trained(ordinal)
                history.trained.append([ordinal, *numbers(batch)])
            one.dump(live, at(step), dataloader=frontier, extra={"history": history})
        for ordinal in sorted(held):
            frontier.trained(ordinal)
            history.trained.append([ordinal, *numbers(held[ordinal])])
        while frontier.frontier < 15:
            ordinal, batch = frontier.draw()
            frontier.trained(ordinal)
            history.trained.append([ordinal, *numbers(batch)])
    return history.trained, dict(frontier.dropped_by_reason)


def test_a_run_that_is_killed_again_and_again_has_trained_all_of_the_data_as_often_but_for_what_was_dropped(
    tmp_path: Path,
) -> None:
    for kill_at in (3, 8):  # after a save and before one; epochs are of 5 batches
        (outcome,) = attempt(1, train_until_killed, tmp_path, tmp_path, kill_at)
        assert outcome.killed
    (outcome,) = attempt(1, train_until_killed, tmp_path, tmp_path, -1)
    assert not outcome.error
    trained, dropped = outcome.value
    assert sorted(ordinal for ordinal, *_ in trained) == [one for one in range(len(trained) + 2) if one not in DROPPED]
    assert dropped == {"stale": 2}
    for epoch in range(3):
        given = [one for ordinal, *batch in trained if ordinal // 5 == epoch for one in batch]
        lost = 2 * sum(ordinal // 5 == epoch for ordinal in DROPPED)
        assert len(set(given)) == len(given) == 10 - lost


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
