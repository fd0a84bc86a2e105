"""Train Stable-Baselines3's PPO on CartPole; milepost is one line.

    python examples/ppo_cartpole.py --root runs/ppo --steps 100000

Kill it at any moment and run the same line again: it goes on from its last checkpoint and ends with the same bits as a
run that was never killed. Run it once more after the end: it trains nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import milepost
from milepost import Keep, every


class Progress(BaseCallback):
    """Say how far training has come."""

    def _on_rollout_start(self) -> None:
        print(f"step {self.num_timesteps}", flush=True)

    def _on_step(self) -> bool:
        if self.num_timesteps % 256 == 0:
            print(f"step {self.num_timesteps}", flush=True)
        return True


def digest(module: torch.nn.Module) -> str:
    """Return the SHA-256 of all parameters: one flipped bit anywhere and it is another."""
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on CartPole that can be killed at any moment")
    parser.add_argument("--root", default="runs/ppo", help="the run root: checkpoints, and monitor/ with the episodes")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps in all, over all restarts")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(message)s")  # milepost logs in one line what it resumed
    torch.set_num_threads(1)  # bits depend on the number of threads, and small nets are fastest with one
    env = make_vec_env("CartPole-v1", n_envs=8, seed=args.seed, monitor_dir=os.path.join(args.root, "monitor"))
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=128, learning_rate=5e-4, gae_lambda=0.9, seed=args.seed, device="cpu")
    checkpointing = milepost.adapters.sb3.Checkpointing(args.root, when=every(steps=2_000), keep=Keep(last=3))
    model.learn(args.steps, callback=[checkpointing, Progress()])
    env.close()
    print("final sha256", digest(model.policy), "at step", model.num_timesteps, flush=True)


if __name__ == "__main__":
    main()
