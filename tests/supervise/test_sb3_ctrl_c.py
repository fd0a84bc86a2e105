"""A Ctrl-C at a terminal reaches the workers of a model's envs, too: they are to leave it to the trainer when to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.publish.view import read
from milepost.store.local import LocalStore
from tests.supervise.attempts import FAILS_AFTER_S, PRELUDE, until

SCRIPT = (
    PRELUDE
    + """
import gymnasium, torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv
from milepost import every
from milepost.adapters.sb3 import Checkpointing

class Ready(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 24:
            made("ready")
            while checkpointing._engine.stopping is None: pass
        return True

def make():
    return gymnasium.make("CartPole-v1")

if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}
    model = PPO("MlpPolicy", SubprocVecEnv([make] * 2, start_method=sys.argv[1]), seed=1, device="cpu", **settings)
    checkpointing = Checkpointing("run", when=every(steps=10**6), stop=True)
    model.learn(10_000, callback=[checkpointing, Ready()])
"""
)


# Ten seconds: SB3 is imported by trainer and workers.
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_with_worker_processes_saves_after_a_ctrl_c(tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with open(tmp_path / "stderr", "wb") as errors:
        process = subprocess.Popen([sys.executable, "train.py", method], cwd=tmp_path, stderr=errors, start_new_session=True)
    try:
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(FAILS_AFTER_S) == 130, (tmp_path / "stderr").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    view = read(LocalStore(str(tmp_path / "run"), SystemClock()))
    assert view.head is not None
    assert view.head.step == 32
    assert "not-spared" not in (tmp_path / "stderr").read_text()
