"""What a save of a replay buffer copies and writes follows the rows that are new, and not the buffer's size. B4"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.counting import counting
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_runs import env_of, off_policy
from tests.adapters.test_sb3_counting import KINDS, add
from tests.adapters.test_sb3_replay import engine_of


@pytest.mark.parametrize("kind", ["plain", "dict", "lean", "her"])
def test_bytes_follow_new_rows_and_not_the_capacity(kind: str) -> None:
    def written(capacity: int, new: int) -> int:
        buffer = KINDS[kind](capacity, 2)
        counting(buffer)
        with engine_of(MemoryStore(), buffer) as engine:
            for number in range(capacity + 10):
                add(buffer, number, 3 if number % 10 == 9 else 0)
            engine.save(1)
            first = engine.wait()
            for number in range(new):
                add(buffer, number, 3 if number % 10 == 9 else 0)
            engine.save(2)
            second = engine.wait()
        assert first is not None
        assert second is not None
        assert first.new_bytes >= capacity * counting(buffer).rows.row_bytes
        return second.new_bytes

    large, small = written(4000, 100), written(1000, 100)
    assert large == small
    assert 100 <= large / KIND_ROW_BYTES[kind] <= 125


KIND_ROW_BYTES = {kind: counting(KINDS[kind](1, 2)).rows.row_bytes for kind in ("plain", "dict", "lean", "her")}


class Sizes(BaseCallback):
    """Say what each generation wrote of the replay buffer."""

    def _on_step(self) -> bool:
        return True


def test_a_whole_run_writes_its_buffer_about_once(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()

    def learn(steps: int, model: Any) -> Any:
        ours = Checkpointing(store, when=every(steps=200), keep=Keep(last=2), writer="inline")
        return model.learn(steps, callback=ours, reset_num_timesteps=False)

    def made() -> DQN:
        return off_policy(DQN, 1, env_of("CartPole-v1"), buffer_size=1_000, learning_starts=10**6)

    with caplog.at_level(logging.WARNING, "milepost"):
        model = learn(1_900, made())
        learn(1_000, model)
        learn(3_500, made())
    assert "rows" not in caplog.text
