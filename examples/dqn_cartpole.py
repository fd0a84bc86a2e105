"""Train DQN on CartPole in one file, with its own loop and its own replay buffer.

    python examples/dqn_cartpole.py --root runs/dqn --steps 50000

Kill it at any moment and run the same line again: it goes on from its last checkpoint and ends with the same bits as a
run that was never killed. Run it once more after the end: it trains nothing. What milepost needs is marked below.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import milepost
from milepost import Keep, every
from milepost.envs import Envs

NUM_ENVS = 4
BUFFER_SIZE = 60_000
BATCH_SIZE = 128
LEARNING_STARTS = 2_000
TARGET_EVERY = 1_000
LEARNING_RATE = 2.5e-4
GAMMA = 0.99
EPSILON_START, EPSILON_END, EPSILON_STEPS = 1.0, 0.05, 12_000


class QNetwork(nn.Sequential):
    """Map an observation to the value of each action."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__(nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions))


def make_env() -> gym.Env[Any, Any]:
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


def make_replay(observations: int) -> dict[str, Any]:
    return {
        "obs": np.zeros((BUFFER_SIZE, observations), np.float32),
        "next_obs": np.zeros((BUFFER_SIZE, observations), np.float32),
        "actions": np.zeros(BUFFER_SIZE, np.int64),
        "rewards": np.zeros(BUFFER_SIZE, np.float32),
        "terminated": np.zeros(BUFFER_SIZE, np.float32),
        "added": 0,
    }


def store(replay: dict[str, Any], **columns: Any) -> None:
    rows = (replay["added"] + np.arange(NUM_ENVS)) % BUFFER_SIZE
    for name, values in columns.items():
        replay[name][rows] = values
    replay["added"] += NUM_ENVS


def act(policy: QNetwork, envs: gym.vector.SyncVectorEnv, obs: np.ndarray, step: int) -> np.ndarray:
    epsilon = max(EPSILON_END, EPSILON_START + (EPSILON_END - EPSILON_START) * step / EPSILON_STEPS)
    if random.random() < epsilon:
        return envs.action_space.sample()
    with torch.no_grad():
        return policy(torch.from_numpy(obs)).argmax(1).numpy()


def learn(policy: QNetwork, target: QNetwork, optimizer: torch.optim.Optimizer, replay: dict[str, Any]) -> None:
    rows = np.random.randint(min(replay["added"], BUFFER_SIZE), size=BATCH_SIZE)
    batch = {name: torch.from_numpy(column[rows]) for name, column in replay.items() if name != "added"}
    with torch.no_grad():
        best = policy(batch["next_obs"]).argmax(1, keepdim=True)
        wanted = batch["rewards"] + GAMMA * (1 - batch["terminated"]) * target(batch["next_obs"]).gather(1, best).squeeze(1)
    values = policy(batch["obs"]).gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(values, wanted).backward()
    optimizer.step()


def digest(*modules: nn.Module) -> str:
    """Return the SHA-256 of all parameters: one flipped bit anywhere and it is another."""
    found = hashlib.sha256()
    for module in modules:
        for parameter in module.parameters():
            found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="DQN on CartPole that can be killed at any moment")
    parser.add_argument("--root", default="runs/dqn", help="the run root: checkpoints, and episodes.csv beside them")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps in all, over all restarts")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)  # bits depend on the number of threads, and small nets are fastest with one
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    envs = gym.vector.SyncVectorEnv([make_env] * NUM_ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(args.seed)
    obs, _ = envs.reset(seed=args.seed)
    policy = QNetwork(obs.shape[1], int(envs.single_action_space.n))
    target = QNetwork(obs.shape[1], int(envs.single_action_space.n))
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    replay = make_replay(obs.shape[1])
    counters = {"step": 0, "episodes": 0, "log_bytes": 0}

    # milepost: everything that decides what comes next. It is read, and overwritten, in place.
    engine = milepost.CheckpointEngine(
        args.root,
        state={
            "policy": policy,
            "target": target,
            "optimizer": optimizer,
            "replay": replay,
            "rollout": {"obs": obs},
            "envs": Envs(envs),
            "counters": counters,
            "rng": milepost.Rng(),
        },
        when=every(steps=1_000),
        keep=Keep(last=3),
    )
    with engine:
        restored = engine.resume()  # milepost: None if there is nothing to go on from
        begun = f"resumed generation {restored.generation}" if restored else "started anew"
        print(begun, "at step", counters["step"], flush=True)

        # Cut the log to where it was at the checkpoint: the rows after that are about to be made again.
        log = open(os.path.join(args.root, "episodes.csv"), "a", buffering=1, newline="")  # noqa: SIM115
        counters["log_bytes"] = log.truncate(min(counters["log_bytes"], log.seek(0, os.SEEK_END)))
        if counters["log_bytes"] == 0:
            counters["log_bytes"] += log.write("step,return\n")

        first = counters["step"]
        while counters["step"] < args.steps:
            actions = act(policy, envs, obs, counters["step"])
            next_obs, rewards, terminated, truncated, infos = envs.step(actions)
            counters["step"] = step = counters["step"] + NUM_ENVS
            final_obs = next_obs.copy()
            for i in np.flatnonzero(terminated | truncated):
                final_obs[i] = infos["final_obs"][i]
                counters["episodes"] += 1
                counters["log_bytes"] += log.write(f"{step},{infos['final_info']['episode']['r'][i]:.0f}\n")
            store(replay, obs=obs, next_obs=final_obs, actions=actions, rewards=rewards, terminated=terminated)
            obs[:] = next_obs  # in place, since the engine holds this very array

            if step >= LEARNING_STARTS:
                learn(policy, target, optimizer, replay)
            if step % TARGET_EVERY < NUM_ENVS:
                target.load_state_dict(policy.state_dict())
            if step % 200 < NUM_ENVS:
                print(f"step {step} episodes {counters['episodes']}", flush=True)
            engine.save_if_due(step, episodes=counters["episodes"])  # milepost: a safe point, where all of the above agrees

        if counters["step"] > first:
            engine.save(counters["step"], reason="end of training")  # milepost: so that another run finds nothing left to do
        log.close()
    envs.close()
    print("final sha256", digest(policy, target), "at step", counters["step"], flush=True)


if __name__ == "__main__":
    main()
