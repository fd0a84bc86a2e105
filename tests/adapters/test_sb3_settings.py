"""A setting that training has changed comes back, wherever it is and whenever it was changed; one the script changes wins. B3"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from milepost import every
from milepost.adapters.sb3 import Checkpointing
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_callbacks import Counting
from tests.adapters.sb3_runs import KILLED, KillAt, env_of, in_child, off_policy, pieces, ppo_model


class Scaled(ReplayBuffer):
    """Scale rewards by an argument of the constructor, which changes with each draw."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale

    def sample(self, batch_size: int, env: Any = None) -> Any:
        self.scale *= 0.99
        found = super().sample(batch_size, env)
        return found._replace(rewards=found.rewards * self.scale)


class Shortening(BaseCallback):
    """Look less far ahead with every rollout: advantages are computed by the buffer's own discount."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.model.rollout_buffer.gamma *= 0.97  # type: ignore[attr-defined]


def scaled(folder: Path | None, kill_at: int | None) -> Any:
    model = off_policy(DQN, 1, env_of("CartPole-v1"), replay_buffer_class=Scaled)
    model.learn(160, callback=[*ours(folder), KillAt(kill_at)])
    return pieces(model), model.replay_buffer.scale


def shortened(folder: Path | None, kill_at: int | None) -> Any:
    model = ppo_model(1, Path())
    model.learn(384, callback=[Shortening(), *ours(folder), KillAt(kill_at)])
    return pieces(model), model.rollout_buffer.gamma


def lowered_before(folder: Path | None, kill_at: int | None) -> Any:
    model = ppo_model(1, Path())
    model.learn(192, callback=[Counting(), *ours(folder)])
    model.learn(192, callback=[*ours(folder), KillAt(kill_at)], reset_num_timesteps=False)
    return pieces(model), model.vf_coef


def ours(folder: Path | None) -> list[BaseCallback]:
    return [] if folder is None else [Checkpointing(folder, when=every(steps=64), writer="inline")]


@pytest.mark.parametrize(("script", "kill_at"), [(scaled, 140), (shortened, 300), (lowered_before, 350)])
def test_what_was_changed_before_the_kill_holds_after_it(script: Any, kill_at: int, tmp_path: Path) -> None:
    alone = in_child(lambda: script(None, None))
    assert in_child(lambda: script(tmp_path / "run", kill_at)) == KILLED
    assert in_child(lambda: script(tmp_path / "run", None)) == alone


def test_a_script_that_gives_another_setting_wins_where_training_changed_none() -> None:
    store = MemoryStore()
    ppo_model(1, Path()).learn(64, callback=Checkpointing(store, when=every(steps=64), writer="inline"))
    model = ppo_model(1, Path(), vf_coef=0.25, gamma=0.9)
    model.learn(128, callback=Checkpointing(store, when=every(steps=64), writer="inline"))
    assert (model.vf_coef, model.rollout_buffer.gamma) == (0.25, 0.9)


def test_what_has_a_component_of_its_own_is_saved_once() -> None:
    # A policy holds its optimizer as an attribute, and a callback may hold the policy.
    store = MemoryStore()
    model = off_policy(DQN, 1, env_of("CartPole-v1"))
    holding = Counting()
    vars(holding).update(net=model.q_net, optimizer=model.policy.optimizer, nets=[model.q_net, model.q_net_target])
    model.learn(80, callback=[Checkpointing(store, when=every(steps=40), writer="inline"), holding])
    number = max(read(store).live)
    manifest = decode_manifest(store.read(layout.manifest(number)), layout.manifest(number))
    beside = [leaf for name in ("extra", "counters") for leaf in manifest.component(name).leaves]  # type: ignore[union-attr]
    assert sum(leaf.size_bytes for leaf in beside) < 2_000, [leaf.path for leaf in beside]
