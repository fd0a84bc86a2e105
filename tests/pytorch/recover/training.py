"""A small training of several engines, the same on any number of ranks, with everything that a run has beside its models."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from milepost.pytorch import RecoverHandler, StepInfo, TrainEngine

STEPS_PER_EPOCH = 5


class Loader:
    """Give the batches of an endless epoch in an order of its own, and know where it is."""

    def __init__(self, seed: int = 1) -> None:
        self.seed, self.position = seed, 0

    def draw(self) -> torch.Tensor:
        self.position += 1
        generator = torch.Generator().manual_seed(self.seed * 1000 + self.position)
        return torch.randn(8, 4, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Actor(torch.nn.Module):
    """Be a model with tied weights, buffers of both kinds, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
        self.first = torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.out = torch.nn.Linear(8, 1)
        self.register_buffer("cache", torch.arange(4.0), persistent=False)
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        answer: torch.Tensor = self.out(self.tied(self.first(self.body(x + self.cache))))
        return answer

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls, 7: "a key that is a number"}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state[7] == "a key that is a number"
        self.calls = list(state["calls"])


def engines(*, shard: bool = False, seed: int = 0, modes: dict[str, Any] | None = None) -> dict[str, TrainEngine]:
    """Return an actor, a critic and a reference, as they are before the first step."""
    torch.manual_seed(seed)
    plain, critic, ref = Actor(), torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)
    actor: torch.nn.Module = plain  # wrapped for several ranks
    if dist.is_initialized() and dist.get_world_size() > 1:
        actor = torch.nn.parallel.DistributedDataParallel(plain)
    if shard:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for model in (critic, ref):
            fully_shard(model, mesh=mesh)
    groups = [{"params": list(plain.body.parameters()), "lr": 3e-2}, {"params": [*plain.first.parameters(), *_rest(plain)]}]
    adam = torch.optim.AdamW(groups, lr=1e-2)
    sgd = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
    modes = modes or {}
    return {
        "default": TrainEngine(actor, adam, torch.optim.lr_scheduler.CosineAnnealingLR(adam, 40), modes.get("default")),
        "critic": TrainEngine(critic, sgd, None, modes.get("critic")),
        "ref": TrainEngine(ref, save_mode=modes.get("ref")),
    }


def _rest(actor: Actor) -> list[torch.nn.Parameter]:
    return [actor.tied.bias, *actor.out.parameters()]  # type: ignore[list-item]


def at(step: int) -> StepInfo:
    """Return where in training a step is."""
    return StepInfo(step // STEPS_PER_EPOCH, step % STEPS_PER_EPOCH, step, STEPS_PER_EPOCH)


def train(trained: dict[str, TrainEngine], loader: Loader, *, critic: bool = True) -> None:
    """Train one step, each rank on data of its own."""
    batch = loader.draw() + 0.01 * torch.randn(8, 4)
    for name in ("default", "critic") if critic else ("default",):
        engine = trained[name]
        assert engine.optimizer is not None
        engine.optimizer.zero_grad()
        engine.model(batch).square().mean().backward()
        engine.optimizer.step()
        if engine.lr_scheduler is not None:
            engine.lr_scheduler.step()


def run(
    handler: RecoverHandler, trained: dict[str, TrainEngine], loader: Loader, until: int, first: int = 0, **more: Any
) -> None:
    """Train the steps from ``first`` up to ``until``, and dump after each."""
    for step in range(first, until):
        train(trained, loader)
        handler.dump(trained, at(step), dataloader=loader, **more)


def digest(trained: dict[str, TrainEngine], loader: Loader | None = None) -> str:
    """Return the digest of all that training goes on from, on this rank."""
    found = hashlib.sha256()
    for name, engine in sorted(trained.items()):
        states = [engine.model.state_dict(), engine.optimizer.state_dict() if engine.optimizer else {}]
        schedule = engine.lr_scheduler.state_dict() if engine.lr_scheduler else {}
        found.update(repr((name, _plain(states), _plain(schedule))).encode())
    found.update(repr(_plain(torch.get_rng_state())).encode())
    found.update(repr(loader.state_dict() if loader else None).encode())
    return found.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return (str(value.dtype), tuple(value.shape), hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest())
    if isinstance(value, dict):
        return sorted(((str(key), _plain(one)) for key, one in value.items()), key=lambda pair: pair[0])
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
