"""A run of Stable-Baselines3 that was saved before 2026-11-30, when there were fewer ways to capture an env, goes on. B2"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from milepost import every
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import oneshot

RUN = Path(__file__).parent / "sb3"
"""Made once, by the script below, killed after its first save; never made anew."""


class Look(BaseCallback):
    """Keep what stands where the first rollout starts, behind the restore."""

    def __init__(self, seen: dict[str, Any]) -> None:
        super().__init__()
        self.found = seen

    def _on_rollout_start(self) -> None:
        model: Any = self.model
        if not self.found:
            self.found["step"] = model.num_timesteps
            self.found["policy"] = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
            self.found["replay"] = (model.replay_buffer.pos, model.replay_buffer.actions[:64].copy())
            self.found["env"] = model.env.envs[0].unwrapped.state.copy()

    def _on_step(self) -> bool:
        return True


def test_a_run_of_stable_baselines3_from_before_goes_on_where_it_was(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    root = shutil.copytree(RUN, tmp_path / "sb3")
    assert oneshot.verify(root).ok
    saved: Any = oneshot.load(root)
    model = DQN(
        "MlpPolicy",
        gymnasium.make("CartPole-v1"),
        learning_starts=20,
        buffer_size=100,
        batch_size=8,
        policy_kwargs={"net_arch": [4]},
        seed=1,
        device="cpu",
    )
    found: dict[str, Any] = {}
    model.learn(128, callback=[Checkpointing(root, when=every(steps=64), writer="inline"), Look(found)])
    assert (found["step"], found["replay"][0], model.num_timesteps) == (64, 64, 128)
    assert list(found["policy"]) == list(saved["policy"]["policy"])
    assert all(torch.equal(tensor, saved["policy"]["policy"][name]) for name, tensor in found["policy"].items())
    assert np.array_equal(found["replay"][1], saved["replay"]["rows"].arrays["actions"][:64])
    layer = saved["envs"]
    while layer["inner"]:
        layer = layer["inner"][0]
    assert np.array_equal(found["env"], layer["state"]["state"])
    assert oneshot.verify(root).resume_from > 1
