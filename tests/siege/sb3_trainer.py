"""Train a small model of Stable-Baselines3 under milepost as an order says: a script as its user would write it, and watched."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3 import DQN, PPO

from milepost import CheckpointEngine, Keep, Stop, every
from milepost.adapters.sb3 import Checkpointing
from tests.adapters.sb3_runs import pieces
from tests.adapters.sb3_scenarios import SCENARIOS, build
from tests.siege import trainer
from tests.siege.strikes import Watch


def main(order: dict[str, Any]) -> None:
    """Train to the end of the scenario."""
    trainer.live(order, lambda watch, note: begun(order, watch, note))


def begun(order: dict[str, Any], watch: Watch, note: trainer.Notes) -> Callable[[], object]:
    name, place = order["scenario"], Path(order["place"])
    for algorithm in (PPO, DQN):
        algorithm.train = watch.watched("training", algorithm.train)  # type: ignore[method-assign]
    CheckpointEngine.save_if_due = noting(CheckpointEngine.save_if_due, note)  # type: ignore[method-assign]
    goes_on = any(place.glob("run/generations/*.json"))
    model, callbacks = build(name, 2 if goes_on else 1, place)
    ours = Checkpointing(
        place / "run",
        when=every(steps=16),
        keep=Keep(last=2),
        stop=Stop(grace="10m"),
        **{key: order[key] for key in ("writer", "lease_wait", "take_over") if key in order},
    )

    def train() -> None:
        model.learn(SCENARIOS[name][1], callback=[*callbacks, *([] if "alone" in order else [ours])])
        note("end", model.num_timesteps, json.dumps(pieces(model, callbacks)))

    return train


def noting(save_if_due: Callable[..., bool], note: trainer.Notes) -> Callable[..., bool]:
    def noted(engine: CheckpointEngine, step: int, **more: Any) -> bool:
        note("safe", "run", step)
        begun = save_if_due(engine, step, **more)
        saved = engine.wait() if step % 3 == 0 else None
        if saved is not None:
            note("acknowledged", "run", saved.number, saved.step)
        return begun

    return noted


def warm_up(scratch: str) -> None:
    """Import what a start imports."""
    for name in ("ppo", "dqn"):
        build(name, 1, Path(scratch))[0].learn(8)
    trainer.warm_up(scratch)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
