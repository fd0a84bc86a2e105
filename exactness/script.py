"""Be the script that is killed: build a run of a cell, train it, and leave what it has ended with."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from exactness.algorithms import ALGORITHMS, make_model
from exactness.axes import LOOP, VENVS, Cell
from exactness.hashes import parts_of
from exactness.loop import run_loop
from exactness.strikes import DyingPosix, Strike, Striking, StrikingCallback
from exactness.worlds import WORLDS, make_env
from milepost.clock import SystemClock
from milepost.lifecycle.triggers import every
from milepost.store.local import LocalStore

RUN, LOGS, ENDED = "run", "logs", "ended.pickle"
_THROUGH_STARTS = 3
"""Start ``n`` of a script has a seed of its own: what comes back comes from the checkpoint, and not from a seed."""


def run(cell: Cell, folder: Path, *, attached: bool, start: int = 0, strike: Strike | None = None) -> None:
    """Run the script once: its ``start``-th start, with milepost or without. Leaves `ENDED` if it comes to its end."""
    torch.set_num_threads(1)
    seed = 1 + _THROUGH_STARTS * start
    root = folder / RUN
    striking = Striking(strike or Strike(), root)
    store: Any = str(root)
    if strike is not None and strike.at_save is not None:
        store = LocalStore(root, SystemClock(), posix=DyingPosix(strike.at_save))
    if cell.algorithm == LOOP:
        parts = run_loop(cell, store if attached else None, seed, striking)
    else:
        parts = _learn(cell, folder, store if attached else None, seed, striking)
    (folder / ENDED).write_bytes(pickle.dumps(parts))


def steps_of(cell: Cell) -> int:
    """Return how many steps a run of the cell takes."""
    return 96 if cell.algorithm == LOOP else ALGORITHMS[cell.algorithm].steps


def resumes(folder: Path) -> list[dict[str, Any]]:
    """Return what the run's own log of events says of each resume."""
    lines = [line for path in sorted((folder / RUN / "events").glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == "resumed"]


def _learn(cell: Cell, folder: Path, store: Any, seed: int, striking: Striking) -> dict[str, Any]:
    ours = [] if store is None else [checkpointing(cell, store)]
    return train(cell, folder / LOGS, seed, [*ours, StrikingCallback(striking)])


def checkpointing(cell: Cell, store: Any, **settings: Any) -> Any:
    """Return milepost's callback, as a cell wants it."""
    from milepost.adapters.sb3 import Checkpointing

    return Checkpointing(store, **{"when": every(steps=ALGORITHMS[cell.algorithm].every), "writer": cell.writer, **settings})


def train(cell: Cell, logs: Path, seed: int, callbacks: list[Any]) -> dict[str, Any]:
    """Build the run of a cell, train it beside these callbacks, and return what it has ended with."""
    from stable_baselines3.common.logger import configure

    algorithm = ALGORITHMS[cell.algorithm]
    logs.mkdir(parents=True, exist_ok=True)
    venv, logger = make_venv(cell, logs, seed), configure(str(logs), ["csv", "json"])
    try:
        model = make_model(cell.algorithm, WORLDS[cell.world].sees, venv, seed)
        model.set_logger(logger)
        beside = [_evaluation(cell, seed)] if cell.beside == "EvalCallback" else []
        model.learn(algorithm.steps, callback=[*beside, *callbacks], log_interval=2)
        return parts_of(model, beside, logs)
    finally:
        logger.close()
        venv.close()


def make_venv(cell: Cell, logs: Path | None, seed: int) -> Any:
    """Return the seeded vector environment of a cell, wrapped."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [_maker(cell, logs, index) for index in range(VENVS[cell.venv])]
    # Forked, since the workers of a `forkserver` would import torch anew at every start of every cell.
    venv: Any = SubprocVecEnv(makers, start_method="fork") if cell.venv.startswith("Subproc") else DummyVecEnv(makers)
    venv = wrapped(venv, cell.wraps, WORLDS[cell.world].sees)
    venv.seed(1000 + seed)
    return venv


def _maker(cell: Cell, logs: Path | None = None, index: int = 0) -> Callable[[], Any]:
    """Return what makes one environment; in a Monitor, unless there is one around them all."""
    if cell.wraps in ("VecMonitor", "all three"):
        return WORLDS[cell.world].make
    return lambda: make_env(cell.world, logs, index)


def wrapped(venv: Any, wraps: str, sees: str) -> Any:
    """Return a vector environment in the wrappers of a cell."""
    from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

    if wraps in ("VecMonitor", "all three"):
        venv = VecMonitor(venv)
    if wraps in ("VecFrameStack", "all three"):
        venv = VecFrameStack(venv, 2)
    if wraps in ("VecNormalize", "all three"):
        venv = VecNormalize(venv, norm_obs=sees in ("vector", "goal"))
    return venv


def _evaluation(cell: Cell, seed: int) -> Any:
    """Return an evaluation whose random actions and env would show, if they came back otherwise."""
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv: Any = wrapped(DummyVecEnv([_maker(cell)]), cell.wraps, WORLDS[cell.world].sees)
    if isinstance(venv, VecNormalize):
        venv.training = False
    venv.seed(2000 + seed)
    often = ALGORITHMS[cell.algorithm].steps // (5 * VENVS[cell.venv])
    return EvalCallback(venv, eval_freq=often, n_eval_episodes=2, deterministic=False, verbose=0, warn=False)


def leave(folder: Path) -> dict[str, Any]:
    """Return what a run that came to its end has left."""
    parts: dict[str, Any] = pickle.loads((folder / ENDED).read_bytes())
    os.unlink(folder / ENDED)
    return parts
