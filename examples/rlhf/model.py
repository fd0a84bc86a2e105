"""Be the small parts of the example: a transformer, a task with a reward, prompts, and a sampler that answers them.

The task: count on. Each token of an answer should be the one before it plus one; the reward of a token is 1 where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, PROMPT, ANSWER = 12, 4, 8
"""How many tokens there are; how long a prompt is, and an answer."""
TOO_EASY = 0.94
"""The mean reward from which on a rollout teaches too little to be trained on."""


class Block(nn.Module):
    """Attend to what came before, and think about it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_thought = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.thought = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.thought(self.before_thought(x))


class Transformer(nn.Module):
    """Map tokens ``(batch, length)`` to ``outputs`` numbers for each: scores of the next token (policy), or a value (critic)."""

    def __init__(self, outputs: int, width: int = 16, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(PROMPT + ANSWER, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # FSDP2 wants an output that is no view


def log_probabilities(policy: nn.Module, tokens: Tensor) -> Tensor:
    """Return how probable the policy finds each token of the answers, as logarithms ``(batch, ANSWER)``."""
    scores = policy(tokens)[:, PROMPT - 1 : -1]
    return scores.log_softmax(-1).gather(-1, tokens[:, PROMPT:, None]).squeeze(-1)


def rewards_of(tokens: Tensor) -> Tensor:
    """Return the reward of each token of the answers ``(batch, ANSWER)``: 1 where it counts on."""
    return (tokens[:, PROMPT:] == (tokens[:, PROMPT - 1 : -1] + 1) % TOKENS).float()


class Prompts(torch.utils.data.Dataset[Tensor]):
    """Hold random prompts, the same for whoever has the seed."""

    def __init__(self, count: int, seed: int) -> None:
        self.tokens = torch.randint(TOKENS, (count, PROMPT), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Hold the answers to one batch of prompts, and what is known about them from when they were sampled."""

    ordinal: int
    """Which batch of the loader's it is."""
    version: int
    """Of the weights it was sampled with."""
    tokens: Tensor
    logp: Tensor


class Sampler:
    """Sample answers with weights of its own, which the trainer sends: what an inference server is to a larger trainer."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.version = model.eval().requires_grad_(False), 0

    def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.model.load_state_dict(weights)
        self.version = version

    # What `RecoverHandler.load` calls: no answer is sampled between these with weights that are half there.

    def pause(self) -> None:
        pass  # it samples only when it is asked

    def update_weights(self, update: Any) -> None:
        if update.engine == "default":
            self.take(update.state(), update.version)

    def resume(self) -> None:
        pass

    def answer(self, ordinal: int, prompts: Tensor, pick: Callable[[Tensor], Tensor]) -> Rollout:
        """Answer prompts ``(batch, PROMPT)``; ``pick`` chooses one of each row of scores."""
        tokens = prompts
        for _ in range(ANSWER):
            tokens = torch.cat([tokens, pick(self.model(tokens)[:, -1])], dim=1)
        return Rollout(ordinal, self.version, tokens, log_probabilities(self.model, tokens))


def draw(scores: Tensor) -> Tensor:
    """Pick by chance."""
    return torch.multinomial(scores.softmax(-1), 1)


def best(scores: Tensor) -> Tensor:
    """Pick the best."""
    return scores.argmax(-1, keepdim=True)


class Rollouts:
    """Sample ahead of training. What is sampled and not trained on yet is saved with the run: no weights could sample it again.

    ``prompts`` is a `milepost.pytorch.TrainedFrontier`: it is saved where training is, and after a restart it draws once more
    what is under way.
    """

    def __init__(self, prompts: Any, sampler: Sampler, ahead: int) -> None:
        self.prompts, self.sampler, self.ahead = prompts, sampler, ahead
        self.ready: dict[int, Rollout] = {}
        self.drawn: deque[int] = deque()

    def next(self) -> Rollout:
        """Return the oldest one that is worth training on, with as many under way as there should be."""
        rollout = self._oldest()
        if rewards_of(rollout.tokens).mean() > TOO_EASY:
            self.prompts.dropped(rollout.ordinal, reason="too easy")
            del self.ready[rollout.ordinal]
            rollout = self._oldest()  # taken as it is, so that a perfect policy comes to its end
        return rollout

    def _oldest(self) -> Rollout:
        while len(self.drawn) < self.ahead:
            ordinal, batch = self.prompts.draw()
            self.drawn.append(ordinal)
            if ordinal not in self.ready:
                self.ready[ordinal] = self.sampler.answer(ordinal, batch, draw)
        return self.ready[self.drawn.popleft()]

    def trained(self, rollout: Rollout) -> None:
        self.prompts.trained(rollout.ordinal)
        del self.ready[rollout.ordinal]

    def state_dict(self) -> dict[str, Any]:
        ready = [(each.ordinal, each.version, each.tokens, each.logp) for each in self.ready.values()]
        return {"prompts": self.prompts.state_dict(), "ready": ready}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.prompts.load_state_dict(state["prompts"])
        self.ready = {rollout.ordinal: rollout for rollout in (Rollout(*each) for each in state["ready"])}
        self.drawn.clear()
