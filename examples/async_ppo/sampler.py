"""Sample with the newest weights, and send what came of it, stamped with the version that made it.

One of several processes, none of which knows of the others. It has nothing to save: started again, it fetches what is newest.
"""

from __future__ import annotations

import argparse
import os

import gymnasium
import numpy as np
import torch
from channel import Outbox
from diary import Diary, fingerprint
from gymnasium.vector import AutoresetMode, VectorEnv
from learning import network
from rollouts import Rollout, Stamp
from torch import nn

import milepost.service


class Sampler:
    """Act in environments, episode after episode, over all rollouts."""

    def __init__(self, name: str, envs: VectorEnv, actor: nn.Module, seed: int) -> None:
        self.name, self.envs, self.actor = name, envs, actor
        self.observations, _ = envs.reset(seed=seed)
        self.returns = np.zeros(envs.num_envs, np.float32)

    @torch.inference_mode()
    def sample(self, length: int, stamp: Stamp) -> Rollout:
        """Make ``length`` steps in each environment."""
        steps, returns = [], []
        for _ in range(length):
            scores = torch.log_softmax(self.actor(torch.from_numpy(self.observations)), -1)
            actions = torch.multinomial(scores.exp(), 1)
            logp = scores.gather(-1, actions)[:, 0].numpy()
            acted, before = actions[:, 0].numpy(), self.observations
            self.observations, rewards, terminated, truncated, info = self.envs.step(acted)
            ended, following = terminated | truncated, self.observations.copy()
            self.returns += rewards
            if ended.any():
                following[ended] = np.stack(info["final_obs"][ended])
                returns.append(self.returns[ended])
                self.returns[ended] = 0
            steps.append((before, acted, logp, rewards.astype(np.float32), following, terminated, ended))
        arrays = (np.stack(each) for each in zip(*steps, strict=True))
        return Rollout(self.name, stamp, *arrays, np.concatenate([np.empty(0, np.float32), *returns]))


def sample(args: argparse.Namespace, index: int, attempt: int) -> None:
    """Sample until this process is ended."""
    name, seed = f"sampler-{index}", int(np.random.SeedSequence([args.seed, index, attempt]).generate_state(1)[0])
    torch.manual_seed(seed)
    again = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec(args.env, args.envs, vectorization_mode="sync", vector_kwargs=again)
    actor = network(envs.single_observation_space.shape[0], envs.single_action_space.n, 0.01)
    sampler, outbox, diary = Sampler(name, envs, actor, seed), Outbox("run/rollouts", name), Diary(f"run/diary/{name}.jsonl")
    with milepost.service.connect("run", component=name, role="sampler") as service:
        stamp = None
        while True:
            # Without any weights there is nothing to do but wait. With some: go on with them, unless there are others.
            weights = service.fetch(timeout=60 if stamp is None else 0)
            if weights is not None:
                with weights:
                    actor.load_state_dict(weights.tensors())
                    stamp = Stamp(weights.at.number, weights.version.step)
                used = fingerprint(actor.state_dict())
            if stamp is None:
                continue
            rollout = sampler.sample(args.length, stamp)
            diary.note(number=stamp.number, step=stamp.step, weights=used, returns=rollout.returns.tolist())
            outbox.put(rollout)


def main() -> None:
    parser = argparse.ArgumentParser(description="sample with the newest weights")
    parser.add_argument("--env", default="CartPole-v1", help="of Gymnasium: discrete actions, flat observations")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="of a rollout, in steps of each environment")
    parser.add_argument("--seed", type=int, default=1)
    torch.set_num_threads(1)
    # A sampler that starts again begins other episodes than those it has sent before.
    sample(parser.parse_args(), int(os.environ["MILEPOST_INDEX"]), int(os.environ["MILEPOST_ATTEMPT"]))


if __name__ == "__main__":
    main()
