"""Train a small policy in a loop of one's own over Gymnasium's vector environments, with the engine itself."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from exactness.axes import GYMNASIUM, Cell
from exactness.hashes import PROBED, answered, flat
from exactness.strikes import Striking
from exactness.worlds import WORLDS, first_actions, make_env

STEPS, EVERY = 96, 12


def run_loop(cell: Cell, store: Any, seed: int, striking: Striking) -> dict[str, Any]:
    """Run it to its end and return what it has ended with."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    venv = make_vector_env(cell)
    try:
        return _trained(cell, venv, store, seed, striking)
    finally:
        venv.close()


def make_vector_env(cell: Cell) -> Any:
    """Return the vector environment of a cell, by Gymnasium's own means."""
    makers = [lambda index=index: make_env(cell.world, None, index) for index in range(GYMNASIUM[cell.venv])]
    return gym.vector.SyncVectorEnv(makers)  # type: ignore[arg-type]


def _trained(cell: Cell, venv: Any, store: Any, seed: int, striking: Striking) -> dict[str, Any]:
    from milepost import CheckpointEngine, Rng

    count = venv.num_envs
    box = WORLDS[cell.world].actions == "box"
    seen = {"last": flat(venv.reset(seed=1000 + seed)[0], venv)}
    net = torch.nn.Sequential(torch.nn.Linear(seen["last"].shape[1], 16), torch.nn.Tanh(), torch.nn.Linear(16, _outputs(venv)))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    counters, metrics = {"step": 0}, {"returns": np.zeros(STEPS // EVERY), "running": np.zeros(count)}
    state = {"policy": net, "optimizer": optimizer, "envs": venv, "rng": Rng(), "counters": counters}
    state |= {"extra": {"seen": seen, "metrics": metrics}}
    with contextlib.nullcontext() if store is None else CheckpointEngine(store, state=state, writer=cell.writer) as engine:
        if engine is not None:
            engine.resume()
        while counters["step"] < STEPS * count:
            gained = []
            for _ in range(EVERY):
                action, likely = _act(net, seen["last"], venv, box=box)
                observation, reward, *_ = venv.step(action)
                seen["last"] = flat(observation, venv)
                metrics["running"] = metrics["running"] * 0.9 + reward
                gained.append(-(likely * torch.as_tensor(metrics["running"], dtype=torch.float32)).mean())
                counters["step"] += count
                striking.step(counters["step"])
            optimizer.zero_grad()
            torch.stack(gained).mean().backward()
            optimizer.step()
            metrics["returns"][counters["step"] // count // EVERY - 1] = metrics["running"].mean()
            if engine is not None:
                engine.save(counters["step"])
    return {
        "parameters": net.state_dict(),
        "optimizers": optimizer.state_dict(),
        "generators": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        "counters": counters,
        "metrics": metrics,
        "envs": _envs(venv),
    }


def _outputs(venv: Any) -> int:
    space = venv.single_action_space
    return int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape))


def _act(net: Any, seen: Any, venv: Any, *, box: bool) -> tuple[Any, Any]:
    out = net(torch.as_tensor(seen, dtype=torch.float32))
    chance = torch.distributions.Normal(out, 0.5) if box else torch.distributions.Categorical(logits=out)
    action = chance.sample()
    likely = chance.log_prob(action)
    if not box:
        return action.numpy(), likely
    low, high = venv.single_action_space.low, venv.single_action_space.high
    return np.clip(action.numpy(), low, high), likely.sum(-1)


def _envs(venv: Any) -> Any:
    """Return what the environments answer from here on: to some steps, a reset, and more."""
    actions = first_actions(venv.single_action_space, venv.num_envs, 2 * PROBED)
    seen = [answered(venv.step(action)) for action in actions[:PROBED]]
    seen.append(venv.reset()[0])
    return [seen, [answered(venv.step(action)) for action in actions[PROBED:]]]
