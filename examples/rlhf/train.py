"""Train a tiny transformer as large ones are: policy, critic and reference on several ranks, rollouts ahead of training.

    milepost run -- torchrun --standalone --nproc-per-node 2 examples/rlhf/train.py --steps 80

Kill a rank, torchrun or all of it, at any moment: what was started again goes on from the last step that was saved, and ends
with the same bits as a run that was never killed. Started once more after the end it trains nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from model import ANSWER, PROMPT, TOKENS, Prompts, Rollout, Rollouts, Sampler, Transformer, best, log_probabilities, rewards_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from torchdata.stateful_dataloader import StatefulDataLoader

import milepost
from milepost import Keep
from milepost.pytorch import Contents, Evaluator, RecoverHandler, Saver, StepInfo, TrainedFrontier, TrainEngine

BATCH, BATCHES_AN_EPOCH, AHEAD, PASSES = 16, 15, 3, 2
"""Prompts that a rank trains on in a step; how many steps make an epoch; how many rollouts are under way; passes over each."""
KL_WEIGHT, DISCOUNT, TRACE, CLIP = 0.02, 0.9, 0.9, 0.2
WHOLE = StateDictOptions(full_state_dict=True)


class Stats:
    """Say how a step went. What it knows of the steps before is part of the run."""

    def __init__(self) -> None:
        self.last_commit_step, self.smooth = -1, 0.0

    def commit(self, step: StepInfo, reward: float) -> None:
        self.smooth = reward if self.last_commit_step < 0 else 0.9 * self.smooth + 0.1 * reward
        self.last_commit_step = step.global_step
        say(f"step {step.global_step} reward {reward!r} smooth {self.smooth!r}")

    def state_dict(self) -> dict[str, Any]:
        return {"last_commit_step": self.last_commit_step, "smooth": self.smooth}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_commit_step, self.smooth = state["last_commit_step"], state["smooth"]


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def mean(values: Tensor) -> float:
    """Return the mean over all ranks."""
    total = values.mean()
    dist.all_reduce(total)
    return float(total / dist.get_world_size())


def sharded(model: nn.Module) -> nn.Module:
    """Share a model among the ranks (FSDP2)."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    return model


def make_engines(seed: int, steps: int) -> tuple[dict[str, TrainEngine], Sampler]:
    """Build what is trained, and what is not: the policy, its critic, where it began, and what samples from it."""
    torch.manual_seed(seed)
    actor, critic, reference, sampled = Transformer(TOKENS), Transformer(1), Transformer(TOKENS), Transformer(TOKENS)
    for copy in (reference, sampled):
        copy.load_state_dict(actor.state_dict())
    actor_optimizer = torch.optim.AdamW(sharded(actor).parameters(), lr=5e-3)
    critic_optimizer = torch.optim.AdamW(sharded(critic).parameters(), lr=5e-3)
    engines = {
        "default": TrainEngine(actor, actor_optimizer, CosineAnnealingLR(actor_optimizer, steps), save_mode="async"),
        "critic": TrainEngine(critic, critic_optimizer, LinearLR(critic_optimizer, 1.0, 0.1, steps), save_mode="sync"),
        "ref": TrainEngine(reference.requires_grad_(False)),
    }
    return engines, Sampler(sampled)


def make_prompts(seed: int) -> TrainedFrontier:
    """Build this rank's loader. Its position is that of training, though sampling is ahead of it."""
    prompts = Prompts(BATCH * BATCHES_AN_EPOCH * dist.get_world_size(), seed)
    order = torch.utils.data.DistributedSampler(prompts, seed=seed)
    return TrainedFrontier(StatefulDataLoader(prompts, batch_size=BATCH, sampler=order))


def judge(rollout: Rollout, critic: nn.Module, reference: nn.Module) -> tuple[Tensor, Tensor]:
    """Return by how much each token was better than expected, and what was to be expected of it."""
    with torch.no_grad():
        drift = rollout.logp - log_probabilities(reference, rollout.tokens)
        rewards = rewards_of(rollout.tokens) - KL_WEIGHT * drift
        values = expected(critic, rollout.tokens)
        ahead = torch.cat([values[:, 1:], torch.zeros(len(values), 1)], dim=1)
        surprises = rewards + DISCOUNT * ahead - values
        for place in reversed(range(ANSWER - 1)):
            surprises[:, place] += DISCOUNT * TRACE * surprises[:, place + 1]
    return surprises, surprises + values


def expected(critic: nn.Module, tokens: Tensor) -> Tensor:
    return critic(tokens)[:, PROMPT - 1 : -1, 0]


def update(engines: Mapping[str, TrainEngine], rollout: Rollout) -> None:
    """Train the policy on a rollout (PPO), and the critic."""
    actor, critic = engines["default"], engines["critic"]
    advantages, returns = judge(rollout, critic.model, engines["ref"].model)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    for _ in range(PASSES):
        order = random.sample(range(BATCH), BATCH)
        for rows in torch.tensor(order).chunk(2):
            tokens, better = rollout.tokens[rows], advantages[rows]
            ratio = (log_probabilities(actor.model, tokens) - rollout.logp[rows]).exp()
            descend(actor, -torch.minimum(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better).mean())
            descend(critic, (expected(critic.model, tokens) - returns[rows]).square().mean())
    for engine in (actor, critic):
        engine.lr_scheduler.step()


def descend(engine: TrainEngine, loss: Tensor) -> None:
    engine.optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
    engine.optimizer.step()


def train(args: argparse.Namespace) -> dict[str, str]:
    """Train until ``args.steps`` are made, over all restarts, and return hashes of all that has come of it."""
    trial = {"experiment": "count-on", "trial": args.trial, "user": "demo"}
    engines, sampler = make_engines(args.seed, args.steps)
    rollouts, stats = Rollouts(make_prompts(args.seed), sampler, AHEAD), Stats()
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(args.seed + 1000 * (dist.get_rank() + 1))  # from here on each rank has its own chance
    held_out = Prompts(64, args.seed + 1).tokens

    evaluator = Evaluator(freq_steps=10)
    saver = Saver(args.fileroot, **trial, freq_epochs=1, keep=2)
    handler = RecoverHandler(args.fileroot, **trial, mode="on", freq_steps=args.save_every, keep=Keep(last=3))
    beside = {"dataloader": rollouts, "saver": saver, "evaluator": evaluator, "stats_logger": stats}
    with handler, saver:
        say("loads")
        info = handler.load(engines, inference=sampler, **beside)
        step = info.last_step_info.next() if info else StepInfo(0, 0, 0, steps_per_epoch=BATCHES_AN_EPOCH)
        say(f"goes on from generation {info.generation} at step {step.global_step}" if info else "begins")
        while step.global_step < args.steps:
            rollout = rollouts.next()  # sampled with older weights than those that are trained with it
            update(engines, rollout)
            rollouts.trained(rollout)

            weights = get_model_state_dict(engines["default"].model, options=WHOLE)
            sampler.take(weights, step.next().global_step)
            saver.save_if_due(Contents(weights, {"config.json": b'{"model_type": "count-on"}'}), step)
            if evaluator.due(step):
                reward = mean(rewards_of(sampler.answer(-1, held_out, best).tokens))
                say(f"eval {step.global_step} reward {reward!r}")
                evaluator.evaluated(step)
            reward = mean(rewards_of(rollout.tokens))
            stats.commit(step, reward)
            # The last thing of a step, when all of the above agrees. The last step is saved, due or not.
            handler.dump(engines, step, **beside, metrics={"reward": reward}, force=step.global_step + 1 == args.steps)
            step = step.next()
    say(f"dropped {dict(rollouts.prompts.dropped_by_reason)} on rank 0")
    return hashes(engines, rollouts)


def hashes(engines: Mapping[str, TrainEngine], rollouts: Rollouts) -> dict[str, str]:
    """Return a hash of each part of the run: one flipped bit anywhere and it is another."""
    models = {name: get_model_state_dict(engine.model, options=WHOLE) for name, engine in engines.items()}
    optimizers = {
        name: [get_optimizer_state_dict(engine.model, engine.optimizer, options=WHOLE), engine.lr_scheduler.state_dict()]
        for name, engine in engines.items()
        if engine.optimizer is not None
    }
    own = {"data": digest(rollouts.state_dict()), "rng": digest(milepost.Rng().state_dict())}
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, own)
    by_rank = {f"{name}-{rank}": value for rank, each in enumerate(everyones) for name, value in each.items()}
    return {"weights": digest(models), "optimizer": digest(optimizers), **by_rank}


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(leaves(tree))).hexdigest()[:12]


def leaves(tree: Any) -> Any:
    """Yield the bytes of all that is in a tree, whatever order a dict has."""
    if isinstance(tree, Mapping):
        tree = sorted(tree.items(), key=lambda item: str(item[0]))
    if isinstance(tree, list | tuple):
        yield from chain.from_iterable(map(leaves, tree))
    elif isinstance(tree, Tensor | np.ndarray):
        yield np.ascontiguousarray(tree).tobytes()
    else:
        yield repr(tree).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="an actor-critic loop on several ranks that can be killed at any moment")
    parser.add_argument("--fileroot", default="runs/rlhf", help="checkpoints and exports go below it")
    parser.add_argument("--trial", default="first")
    parser.add_argument("--steps", type=int, default=80, help="in all, over all restarts")
    parser.add_argument("--save-every", type=int, default=3, help="so many steps may be lost")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # bits depend on the number of threads
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name, value in train(args).items():
        say(f"final {name} {value}")
    dist.barrier()  # nobody leaves while another still needs it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
