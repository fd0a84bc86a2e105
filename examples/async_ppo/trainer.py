"""Train on what samplers send, and hand every new version of the policy to the service that they fetch it from.

Killed at any moment, it goes on from its last checkpoint. Versions of later steps are a lost branch then: the first thing it does
is to commit the weights that it goes on with, so that samplers have them, too.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from channel import Inbox
from diary import Diary, fingerprint
from learning import Learner
from rollouts import Rollout, Stamp, judge

import milepost
import milepost.service
from milepost import Keep, every


class Incoming:
    """Take rollouts as they come, but for those that are too old to learn from. Each is counted by what becomes of it."""

    def __init__(self, counters: dict[str, int], resumed: Stamp, max_gap: int) -> None:
        self.inbox, self.counters, self.resumed, self.max_gap = Inbox("run/rollouts"), counters, resumed, max_gap

    def gather(self, count: int, meanwhile: Callable[[], object]) -> list[Rollout]:
        """Wait for so many."""
        found: list[Rollout] = []
        while len(found) < count:
            rollout = self.inbox.take()
            if rollout is None:
                meanwhile()
                time.sleep(0.005)
                continue
            verdict = judge(rollout.stamp, self.counters["step"], self.resumed, self.max_gap)
            self.counters[verdict] += 1
            if verdict == "use":
                found.append(rollout)
        return found


class Trainer:
    """Train an actor and a critic; save both, with all that belongs to them; hand out the actor."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        with gymnasium.make(args.env) as env:
            self.learner = Learner(env.observation_space.shape[0], env.action_space.n, args.rate)
        self.args = args
        self.counters = {"step": 0, "use": 0, "stale": 0, "orphaned": 0}
        self.diary, self.returns = Diary("run/diary/trainer.jsonl"), deque(maxlen=100)

    @property
    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        networks = {"policy": self.learner.actor, "value": self.learner.critic, "optimizer": self.learner.optimizer}
        return {**networks, "counters": self.counters, "rng": milepost.Rng()}

    def train(self, engine: milepost.CheckpointEngine, service: milepost.service.Client) -> None:
        """Train until ``steps`` are made, over all restarts."""
        counters, steps = self.counters, self.args.steps
        done = self.commit(service, [])
        incoming = Incoming(counters, Stamp(done.at.number, counters["step"]), self.args.max_gap)
        while counters["step"] < steps:
            # Nothing has changed since the last step, so that to wait is a safe point, too: told to leave, it can.
            rollouts = incoming.gather(self.args.rollouts, meanwhile=lambda: engine.save_if_due(counters["step"]))
            self.learner.update(rollouts, left=1 - counters["step"] / steps)
            counters["step"] += 1
            done = self.commit(service, rollouts)
            if counters["step"] == steps:
                engine.save(steps)  # the last step is saved, due or not
            elif not engine.save_if_due(counters["step"]):
                continue
            self.settle(engine, service, done)

    def commit(self, service: milepost.service.Client, trained_on: list[Rollout]) -> milepost.service.Done:
        """Make the weights as they are now the ones that samplers fetch."""
        weights = self.learner.actor.state_dict()
        done = service.commit(self.counters["step"], weights)
        made_by = [(each.sampler, each.stamp.number, each.stamp.step) for each in trained_on]
        returns = [float(each) for rollout in trained_on for each in rollout.returns]
        self.diary.note(
            term=done.at.term,
            number=done.at.number,
            weights=fingerprint(weights),
            **self.counters,
            made_by=made_by,
            returns=returns,
        )
        self.returns.extend(returns)
        return done

    def settle(self, engine: milepost.CheckpointEngine, service: milepost.service.Client, done: milepost.service.Done) -> None:
        """Wait until the version is as safe as the checkpoint of its step, and say that they belong together."""
        service.wait_durable(done)
        generation = engine.wait().number
        service.link(done, generation)
        self.diary.note(durable=done.at.number, step=self.counters["step"], generation=generation)
        mean, counts = sum(self.returns) / max(1, len(self.returns)), self.counters
        rollouts = f"rollouts used {counts['use']}, too old {counts['stale']}, of lost versions {counts['orphaned']}"
        print(f"step {counts['step']}: {done.at} in generation {generation}, mean return {mean:.0f}; {rollouts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="train with PPO on what samplers send")
    parser.add_argument("--env", default="CartPole-v1", help="as the samplers'")
    parser.add_argument("--steps", type=int, default=300, help="in all, over all restarts")
    parser.add_argument("--rollouts", type=int, default=2, help="trained on in a step")
    parser.add_argument("--max-gap", type=int, default=4, help="older rollouts, in steps of the trainer, are dropped")
    parser.add_argument("--save-every", type=int, default=20, help="so many steps may be lost")
    parser.add_argument("--rate", type=float, default=5e-4, help="of learning; falls to 0")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # bits depend on the number of threads

    trainer = Trainer(args)
    with milepost.CheckpointEngine("run", state=trainer.state, when=every(steps=args.save_every), keep=Keep(last=3)) as engine:
        engine.resume()
        with milepost.service.connect("run", component="trainer", role="trainer", step=trainer.counters["step"]) as service:
            trainer.train(engine, service)


if __name__ == "__main__":
    main()
