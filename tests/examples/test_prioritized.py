"""The prioritized buffer of the examples draws the same rows after a kill, and costs its new rows and its trees. B3, B20"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from examples.prioritized_replay import PrioritizedReplayBuffer, make_model
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.fields import fields
from milepost.lifecycle.triggers import every
from tests.adapters.sb3_runs import KILLED, KillAt, env_of, in_child, pieces

STEPS = 260


class Remembering(PrioritizedReplayBuffer):
    """Keep every index that was ever drawn, beside the state."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        found = super().sample(batch_size, env)
        DRAWN.append(self.drawn.tolist())
        return found


DRAWN: list[list[int]] = []


def run(root: Path | None, kill_at: int | None = None, seed: int = 1) -> Any:
    def script() -> Any:
        DRAWN.clear()
        model = make_model(
            seed,
            env_of("CartPole-v1", 2),
            buffer_size=100,
            learning_starts=40,
            batch_size=16,
            policy_kwargs={"net_arch": [16]},
            replay_buffer_class=Remembering,
        )
        ours = [] if root is None else [Checkpointing(root, when=every(steps=40), writer="inline")]
        model.learn(STEPS, callback=[*ours, KillAt(kill_at)])
        return pieces(model), list(DRAWN)

    return in_child(script)


def test_the_same_rows_are_drawn_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    alone, drawn = run(None)
    assert run(tmp_path / "run", 170) == KILLED
    ended, later = run(tmp_path / "run", seed=2)
    assert ended == alone
    assert 0 < len(later) < len(drawn)
    assert later == drawn[-len(later) :]


def test_the_trees_are_no_rows_and_the_transitions_are() -> None:
    buffer = make_model(1).replay_buffer
    assert fields(buffer).keys() == fields(ReplayBuffer(8, buffer.observation_space, buffer.action_space)).keys()
    assert np.shares_memory(fields(buffer)["rewards"], buffer.rewards)
