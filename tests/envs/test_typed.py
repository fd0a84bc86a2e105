"""Objects that declare or say what they hold come back, by kind; nothing is imported or run because a checkpoint names it. B3"""

from __future__ import annotations

import copy
import sys
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.envs.plain import ABSENT, Recorder, Refiller
from milepost.errors import MismatchError


class Phase(Enum):
    """Be one of two."""

    WARM = 1
    HOT = 2


class Right(Flag):
    """Be some of two."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """Be a pair."""

    x: Any
    y: Any


@dataclass
class Open:
    """Hold what may change."""

    phase: Any
    items: Any = field(default_factory=list)


@dataclass(frozen=True)
class Closed:
    """Hold what never changes."""

    phase: Any
    items: Any = None


@dataclass(slots=True)
class Slotted:
    """Hold it in slots."""

    phase: Any
    items: Any = None


class Spoken:
    """Say what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def milepost_get_state(self) -> Any:
        return {"value": self.value}

    def milepost_set_state(self, state: Any) -> None:
        self.value = state["value"]


ATOMS = st.integers() | st.text(max_size=2) | st.none() | st.sampled_from(Phase)


def _inside(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(values, values)
    classes = (Point, Open, Closed, Slotted)
    return st.one_of(
        st.lists(values, max_size=3),
        st.lists(values, max_size=3).map(deque),
        *(pairs.map(lambda pair, made=made: made(*pair)) for made in classes),
    )


VALUES = st.recursive(ATOMS, _inside, max_leaves=8)


def carried(value: Any, live: Any) -> Any:
    recorder = Recorder()
    tree = recorder.value(value, "x")
    assert recorder.left_out == []
    return Refiller().value(copy.deepcopy(tree), live, "x")


@given(saved=VALUES, live=VALUES)
def test_whatever_is_live_the_saved_value_comes_back(saved: Any, live: Any) -> None:
    back = carried(saved, live)
    assert back == saved
    assert type(back) is type(saved)


@given(saved=st.tuples(ATOMS, ATOMS), live=st.tuples(ATOMS, ATOMS), kind=st.sampled_from([Open, Slotted, Closed]))
def test_a_dataclass_is_overwritten_in_place_and_a_frozen_one_never(saved: Any, live: Any, kind: Any) -> None:
    here, before = kind(*live), kind(*live)
    back = carried(kind(*saved), here)
    assert (back is here) == (kind is not Closed)
    assert kind is not Closed or here == before


def test_modules_optimizers_averages_and_schedules_are_asked_for_their_states() -> None:
    def made(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        averaged = torch.optim.swa_utils.AveragedModel(net)
        return [net, optimizer, averaged, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    def learn(parts: list[Any], steps: int) -> None:
        net, optimizer, averaged, rate = parts
        for step in range(steps):
            optimizer.zero_grad()
            net(torch.arange(8.0).reshape(4, 2) + step).square().sum().backward()
            optimizer.step()
            rate.step()
            averaged.update_parameters(net)

    saved, live = made(1), made(2)
    learn(saved, 3)
    back = carried(saved, live)
    assert all(one is other for one, other in zip(back, [*live], strict=True))
    learn(saved, 3)
    learn(live, 3)
    for one, other in zip(saved[0].state_dict().values(), live[0].state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert saved[3].get_last_lr() == live[3].get_last_lr()
    assert int(live[2].n_averaged) == 6


def test_a_class_may_speak_for_its_objects_wherever_they_are() -> None:
    live = [Spoken(0), {"a": Spoken(1)}]
    first = live[0]
    carried([Spoken([7, Phase.HOT]), {"a": Spoken(np.arange(3))}], live)
    assert live[0] is first
    assert live[0].value == [7, Phase.HOT]
    assert live[1]["a"].value.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value", [Right.READ | Right.WRITE, Closed(object()), Point(object(), 1)], ids=["flags", "frozen", "named tuple"]
)
def test_what_could_not_come_back_whole_is_named(value: Any) -> None:
    recorder = Recorder()
    assert recorder.value(value, "x") is ABSENT
    assert recorder.left_out


def test_a_mutable_dataclass_comes_back_but_for_what_is_no_data() -> None:
    recorder, live = Recorder(), Open(object())
    kept = live.phase
    tree = recorder.value(Open(object(), [1]), "x")
    assert [left.path for left in recorder.left_out] == ["x.phase"]
    back = Refiller().value(tree, live, "x")
    assert (back.phase is kept, back.items) == (True, [1])


@pytest.mark.parametrize("kind", ["named", "enum", "dataclass"])
@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "antigravity.Anything", f"{__name__}.Spoken", "nothing", ""])
def test_a_planted_name_makes_nothing(kind: str, name: str) -> None:
    with pytest.raises(MismatchError):
        Refiller().value({"$kind": kind, "class": name, "state": [1, 2]}, None, "x")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "planted",
    [
        {"$kind": "named", "class": f"{__name__}.Point", "state": [1]},
        {"$kind": "enum", "class": f"{__name__}.Phase", "state": "COLD"},
        {"$kind": "dataclass", "class": f"{__name__}.Slotted", "state": {"extra": 1}},
        {"$kind": "stateful", "class": "torch.nn.modules.linear.Linear", "state": {}},
    ],
)
def test_a_state_that_fits_no_class_is_refused(planted: dict[str, Any]) -> None:
    with pytest.raises(MismatchError):
        Refiller().value(planted, None, "x")
