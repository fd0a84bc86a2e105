"""Our callback comes first in its list, and nobody else's turn is lost or taken twice."""

from __future__ import annotations

from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps

from milepost.adapters.sb3.callbacks import move_to_front, others
from milepost.errors import UsageError


class Named(BaseCallback):
    """Tell when it is started."""

    def __init__(self, name: str, started: list[str]) -> None:
        super().__init__()
        self.name, self.started = name, started

    def _on_training_start(self) -> None:
        self.started.append(self.name)

    def _on_step(self) -> bool:
        return True


class Ours(Named):
    """Move to the front while the lists are being iterated."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        move_to_front(self.locals["callback"], self)


class Model:
    """Stand in for a model."""

    num_timesteps = 0


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("nested", [False, True])
def test_moving_to_the_front_while_callbacks_are_started_starts_each_once(place: int, nested: bool) -> None:
    started: list[str] = []
    ours = Ours("ours", started)
    callbacks: list[BaseCallback] = [Named(name, started) for name in "abc"]
    callbacks.insert(place, ours)
    root: Any = CallbackList(callbacks)
    if nested:
        root = CallbackList([Named("x", started), root, Named("y", started)])
    model: Any = Model()
    root.init_callback(model)
    root.on_training_start({"callback": root}, {})
    assert sorted(started) == sorted(["ours", "a", "b", "c", *(["x", "y"] if nested else [])])
    assert callbacks[0] is ours
    if nested:
        assert root.callbacks[0].callbacks is callbacks
    assert [path.rpartition(":")[2] for path, _ in others(root, ours)] == ["Named"] * (5 if nested else 3)


def test_a_callback_inside_another_is_not_in_a_list() -> None:
    ours = Ours("ours", [])
    with pytest.raises(UsageError, match="does not see the rollouts"):
        move_to_front(CallbackList([EveryNTimesteps(3, ours)]), ours)
