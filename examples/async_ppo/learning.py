"""Learn from what others have sampled, with weights that were current a moment ago: PPO with importance weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rollouts import Rollout
from torch import Tensor, nn
from torch.nn import functional

DISCOUNT, TRACE, CLIP, ENTROPY, MOST_WEIGHT = 0.99, 0.95, 0.2, 0.01, 2.0
EPOCHS, ROWS = 10, 256
"""How often each step is trained on; how many of them at once."""


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Build a small network. A ``gain`` near zero makes a policy that tries everything at first."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Learner:
    """Train an actor, which samplers use, and a critic, which stays here."""

    def __init__(self, inputs: int, actions: int, rate: float) -> None:
        self.actor, self.critic, self.rate = network(inputs, actions, 0.01), network(inputs, 1, 1.0), rate
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], lr=rate, eps=1e-5)

    def update(self, rollouts: Sequence[Rollout], left: float) -> None:
        """Train on some rollouts; ``left`` is how much of the training is still to come, from 1 to 0."""
        self.optimizer.param_groups[0]["lr"] = self.rate * left
        parts = [self._judge(rollout) for rollout in rollouts]
        observations, actions, advantages, returns, nearby, weight = (torch.cat(each) for each in zip(*parts, strict=True))
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(actions)).split(ROWS):
                logp, entropy = log_probabilities(self.actor, observations[rows], actions[rows])
                ratio = (logp - nearby[rows]).exp()
                gain = torch.minimum(ratio * advantages[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[rows])
                surprise = (self.critic(observations[rows])[:, 0] - returns[rows]).square().mean()
                self._descend(-(weight[rows] * gain).mean() - ENTROPY * entropy.mean() + 0.5 * surprise)

    @torch.no_grad()
    def _judge(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Return what is trained on, a row for each step: how much better it was than expected, and who would have done it.

        PPO clips against the policy as it is now. That another has chosen the actions is the matter of the weight: how much
        likelier they are now than they were for who has chosen them, and no more than so much, or few rows would decide all.
        """
        observations, following = torch.from_numpy(rollout.observations), torch.from_numpy(rollout.following)
        expected, ahead = self.critic(observations)[..., 0].numpy(), self.critic(following)[..., 0].numpy()
        surprises = rollout.rewards + DISCOUNT * ahead * ~rollout.terminated - expected
        advantages, running = np.zeros_like(surprises), np.zeros_like(surprises[0])
        for step in reversed(range(len(surprises))):
            running = surprises[step] + DISCOUNT * TRACE * running * ~rollout.ended[step]
            advantages[step] = running
        actions = torch.from_numpy(rollout.actions)
        nearby, _ = log_probabilities(self.actor, observations, actions)
        weight = (nearby - torch.from_numpy(rollout.logp)).exp().clamp(max=MOST_WEIGHT)
        better, returns = torch.from_numpy(advantages), torch.from_numpy(advantages + expected)
        return (observations.flatten(0, 1), *(each.flatten() for each in (actions, better, returns, nearby, weight)))

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], 0.5)
        self.optimizer.step()


def log_probabilities(actor: nn.Module, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return how likely a policy is to do this, as logarithms, and how undecided it is."""
    scores = functional.log_softmax(actor(observations), -1)
    return scores.gather(-1, actions[..., None])[..., 0], -(scores.exp() * scores).sum(-1)
