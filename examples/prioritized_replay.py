"""Train DQN with prioritized replay: a replay buffer of one's own that milepost saves at the cost of its new rows.

    python examples/prioritized_replay.py --root runs/prioritized --steps 20000

The transitions are those of Stable-Baselines3's buffer, written at ``pos`` and nowhere else. The two trees change anywhere,
and are saved whole: 32 bytes a transition. Kill it and run it again: the same rows are drawn as if nothing had happened.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

import milepost
from milepost import Keep, every


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draw transitions in proportion to the error they were last seen with (Schaul et al., 2016).

    Both trees are heaps in an array: node 1 is the root, node n has the children 2n and 2n + 1, the leaves are the
    transitions. One holds sums, the other minima.
    """

    milepost_rows = ()  # a promise: what `add` writes it writes at `pos`; the arrays below are saved whole

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert not self.optimize_memory_usage, "the row at the cursor must never be drawn: not built here"
        self.alpha, self.beta = alpha, beta
        self.leaves = 1 << (self.buffer_size * self.n_envs - 1).bit_length()
        self.sums = np.zeros(2 * self.leaves)
        self.minima = np.full(2 * self.leaves, np.inf)
        self.highest = 1.0
        self.drawn = np.zeros(0, np.int64)

    def add(self, *args: Any, **kwargs: Any) -> None:
        new = self.pos * self.n_envs + np.arange(self.n_envs)
        super().add(*args, **kwargs)
        self._set(new, np.full(self.n_envs, self.highest))

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        # One draw from each of equally large parts of the whole mass.
        mass = (np.arange(batch_size) + np.random.random(batch_size)) / batch_size * self.sums[1]
        node = np.ones(batch_size, np.int64)
        while node[0] < self.leaves:
            node *= 2
            right = mass >= self.sums[node]
            mass -= self.sums[node] * right
            node += right & (self.sums[node + 1] > 0)
        self.drawn = node - self.leaves
        return self._get_samples(self.drawn, env)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> ReplayBufferSamples:
        rows, envs = batch_inds // self.n_envs, batch_inds % self.n_envs
        data = (
            self._normalize_obs(self.observations[rows, envs], env),
            self.actions[rows, envs],
            self._normalize_obs(self.next_observations[rows, envs], env),
            (self.dones[rows, envs] * (1 - self.timeouts[rows, envs])).reshape(-1, 1),
            self._normalize_reward(self.rewards[rows, envs].reshape(-1, 1), env),
        )
        return ReplayBufferSamples(*map(self.to_torch, data))

    def weights(self) -> torch.Tensor:
        """Return what corrects the last batch for having been drawn with preference."""
        scaled = self.sums[self.leaves + self.drawn] / self.minima[1]
        return self.to_torch((scaled**-self.beta).astype(np.float32).reshape(-1, 1))

    def update(self, errors: np.ndarray[Any, Any]) -> None:
        """Take the last batch's errors as its priorities."""
        priorities = (np.abs(errors.ravel()).astype(np.float64) + 1e-6) ** self.alpha
        self.highest = max(self.highest, float(priorities.max()))
        self._set(self.drawn, priorities)

    def _set(self, index: np.ndarray[Any, Any], priorities: np.ndarray[Any, Any]) -> None:
        node = self.leaves + index
        self.sums[node] = self.minima[node] = priorities
        while node[0] > 1:
            node = np.unique(node // 2)
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]
            self.minima[node] = np.minimum(self.minima[2 * node], self.minima[2 * node + 1])


class PrioritizedDQN(DQN):
    """Learn from what surprised most."""

    replay_buffer: PrioritizedReplayBuffer

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                following = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
                target = batch.rewards + (1 - batch.dones) * self.gamma * following
            value = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = torch.nn.functional.smooth_l1_loss(value, target, reduction="none") * self.replay_buffer.weights()
            self.policy.optimizer.zero_grad()
            loss.mean().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update((target - value).detach().numpy())
        self._n_updates += gradient_steps


def make_model(seed: int, env: gym.Env[Any, Any] | None = None, **options: Any) -> PrioritizedDQN:
    return PrioritizedDQN(
        "MlpPolicy",
        env or gym.make("CartPole-v1"),
        device="cpu",
        seed=seed,
        **{"replay_buffer_class": PrioritizedReplayBuffer, "learning_starts": 500, "buffer_size": 10_000, **options},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="runs/prioritized")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model(args.seed)
    model.learn(args.steps, callback=milepost.adapters.sb3.Checkpointing(args.root, when=every(steps=1_000), keep=Keep(last=3)))
    tensors = model.policy.state_dict().values()
    print(hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest())


if __name__ == "__main__":
    main()
