"""A rank is killed anywhere in a dump or a load: the others end, what was acknowledged stands, the next start goes on. A9, A10

One run is killed again and again, each time from where the last one left it: so each launch tries a recovery, too.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from tests.pytorch.dcp.ranks import attempt, die
from tests.pytorch.dcp.ranks import run as launch
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.test_several_ranks import MIXED
from tests.pytorch.recover.training import Loader, at, digest, engines, train

LAST = 40
POINTS = {
    "copies": ("milepost.pytorch.recover.staging", "Copies.make"),
    "live": ("milepost.pytorch.dcp.writing", "_write_blob"),
    "beside": ("milepost.pytorch.dcp.writing", "_write_blob"),
    "published": ("milepost.pytorch.dcp.holding", "Holding.publish"),
    "choose": ("milepost.pytorch.recover.reading", "Choosing.find"),
    "overwrite": ("milepost.pytorch.dcp.reader", "read_items"),
    "put back": ("milepost.pytorch.recover.loading", "put_model"),
}
DEATHS = [
    (1, "copies", "before", 1),
    (0, "live", "before", 1),
    (1, "live", "after", 1),
    (1, "beside", "before", 2),
    (0, "beside", "after", 2),
    (0, "published", "before", 1),
    (0, "published", "after", 1),
    (1, "choose", "after", 1),
    (0, "overwrite", "before", 1),
    (1, "put back", "after", 2),
]


def arrange(point: str, when: str, nth: int) -> None:
    """Have this process end before or after the ``nth`` call of something."""
    module, name = POINTS[point]
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    real, count = getattr(owner, last), [0]

    def dying(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if when == "before" and count[0] == nth:
            die()
        answer = real(*args, **kwargs)
        if when == "after" and count[0] == nth:
            die()
        return answer

    setattr(owner, last, dying)


def trains(rank: int, place: str, death: tuple[int, str, str, int] | None, until: int) -> Any:
    trained, loader = engines(shard=True, modes=MIXED), Loader(rank)
    torch.manual_seed(rank)
    if death is not None and death[0] == rank:
        arrange(*death[1:])
    with handler(Path(place), freq_steps=2) as each:
        info = each.load(trained, dataloader=loader)
        first = info.last_step_info.next().global_step if info is not None else 0
        for step in range(first, until):
            train(trained, loader)
            each.dump(trained, at(step), dataloader=loader)
    return digest(trained, loader), first


# Thirteen launches of two ranks: each death needs one of its own.
@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_ends_with_the_bits_of_one_left_alone(tmp_path: Path) -> None:
    place, done = str(tmp_path / "killed"), 0
    launch(2, trains, tmp_path / "meet", place, None, 4)
    for number, death in enumerate(DEATHS):
        outcomes = attempt(2, trains, tmp_path / f"meet-{number}", place, death, LAST, group_s=30)
        assert outcomes[death[0]].killed, death
        assert outcomes[1 - death[0]].error, death
        newest = handler(Path(place)).newest
        assert newest is not None
        assert newest.step >= done, death
        assert milepost.verify(handler(Path(place)).root).ok, death
        done = newest.step
    until = done + 5
    resumed = launch(2, trains, tmp_path / "meet-resumed", place, None, until)
    assert [first for _, first in resumed] == [done + 1] * 2
    alone = launch(2, trains, tmp_path / "meet-alone", str(tmp_path / "alone"), None, until)
    assert [found for found, _ in resumed] == [found for found, _ in alone]
