"""Train an actor and a critic on some ranks, and die where each attempt is told to. Started by torchrun: ``trained.py FOLDER``.

``orders.json`` of the folder is a list with an order for each attempt: what befalls which rank, and where. At the end each rank
leaves ``end-RANK``: a digest of all that it has, to be compared with that of a run which nothing befell.

``trained.py FOLDER agent`` is torchrun's own agent, with ranks that are forked from it: torch is imported once for all of them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 12
EVERY = 3
RETRIES = 50
POINTS = {
    "claim": ("milepost.pytorch.dcp.holding", "_claimed"),
    "choose": ("milepost.pytorch.recover.reading", "Choosing.find"),
    "load": ("milepost.pytorch.dcp.reader", "RunReader.read_data"),
    "set": ("milepost.pytorch.recover.loading", "Loading.load"),
    "stage": ("milepost.pytorch.recover.staging", "Copies.make"),
    "exchange": ("milepost.pytorch.recover.ending", "Ending.at"),
    "plan": ("milepost.pytorch.dcp.writer", "RunWriter.set_up_storage_writer"),
    "write": ("milepost.pytorch.dcp.writer", "RunWriter.write_data"),
    "blob": ("milepost.pytorch.dcp.writing", "_write_blob"),
    "publish": ("milepost.pytorch.dcp.holding", "Holding.publish"),
    "retire": ("milepost.engine.writer", "retire"),
    "close": ("milepost.pytorch.recover.handler", "RecoverHandler.close"),
}
"""Where something may befall a rank: before or after one of these functions has run."""


@dataclass(frozen=True)
class Order:
    """Say what befalls one rank."""

    rank: int
    point: str
    when: str = "before"
    nth: int = 1
    """At which call."""
    does: str = "SIGKILL"
    """A signal that it sends itself; with ``agent:`` before, to torchrun, and then it waits at the gate; ``waits``: only that."""


def attempt_of() -> int:
    """Return which start this is, from 1."""
    return int(os.environ.get("MILEPOST_ATTEMPT", "1"))


def obey(order: Order | None, rank: int, folder: Path) -> None:
    """Arrange for it."""
    if order is None or order.rank != rank:
        return
    if order.point == "step":
        return  # `main` does it
    module, name = POINTS[order.point]
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    inner, calls = getattr(owner, last), 0

    def struck(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        is_now = calls == order.nth
        if is_now and order.when == "before":
            strike(order, folder)
        answer = inner(*args, **kwargs)
        if is_now and order.when == "after":
            strike(order, folder)
        return answer

    setattr(owner, last, struck)


def strike(order: Order, folder: Path) -> None:
    (folder / f"struck-{attempt_of()}").write_text(f"{os.getpid()} {os.getppid()}")
    who, _, name = order.does.rpartition(":")
    if name != "waits":
        os.kill(os.getppid() if who == "agent" else os.getpid(), signal.Signals[name])
    if name == "waits" or who == "agent":
        open(folder / "gate", "rb").close()  # a FIFO: until the test has done what it wants to do meanwhile


class Data:
    """Give out numbers by its own place, and remember none."""

    def __init__(self, rank: int) -> None:
        self.rank, self.at = rank, 0

    def next(self) -> float:
        self.at += 1
        return float(self.at * 10 + self.rank)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def main(folder: Path) -> None:
    import torch
    import torch.distributed as dist

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    orders = json.loads((folder / "orders.json").read_text())
    told = orders[attempt_of() - 1] if attempt_of() <= len(orders) else None
    try:
        train(folder, dist.get_rank(), Order(**told) if told else None)
        dist.barrier()
    finally:
        dist.destroy_process_group()  # a process that ends with one is aborted by torch, whatever it wanted to end with


def train(folder: Path, rank: int, order: Order | None) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from milepost.pytorch import RecoverHandler, StepInfo, TrainEngine

    obey(order, rank, folder)
    torch.manual_seed(100 + rank)
    actor = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    fully_shard(actor, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    critic = torch.nn.Linear(4, 1)
    for tensor in critic.parameters():
        dist.broadcast(tensor.data, 0)
    optimizers = torch.optim.AdamW(actor.parameters(), lr=1e-2), torch.optim.SGD(critic.parameters(), lr=1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=4, gamma=0.5)
    engines = {
        "default": TrainEngine(actor, optimizers[0], schedule, save_mode="sync"),
        "critic": TrainEngine(critic, optimizers[1], save_mode="async"),
    }
    data = Data(rank)
    with RecoverHandler(
        folder / "root", experiment="e", trial="t", user="u", mode="on", freq_steps=EVERY, retries=RETRIES, timeout_s=120
    ) as handler:
        info = handler.load(engines, dataloader=data)
        (folder / f"resumed-{attempt_of()}-{rank}").write_text(str(info.generation if info else 0))
        step = info.last_step_info.next() if info else StepInfo(0, 0, 0, STEPS)
        while step.global_step < STEPS:
            if order is not None and order.point == "step" and order.rank == rank and step.global_step >= order.nth:
                strike(order, folder)
                order = None
            noise = torch.randn(3, 4) * data.next()
            for model, optimizer in zip((actor, critic), optimizers, strict=True):
                model(noise).square().mean().backward()
                if model is critic:
                    for tensor in critic.parameters():
                        dist.all_reduce(tensor.grad)
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            handler.dump(engines, step, dataloader=data, force=step.global_step == STEPS - 1)
            step = step.next()
    (folder / f"end-{rank}").write_text(digest(actor, critic, optimizers, schedule, data))


def digest(actor: Any, critic: Any, optimizers: Any, schedule: Any, data: Data) -> str:
    import torch

    found = hashlib.sha256()
    tensors = [*actor.parameters(), *critic.parameters()]
    tensors += [each for one in optimizers for state in one.state.values() for _, each in sorted(state.items())]
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().numpy().tobytes())
    found.update(repr((schedule.state_dict()["last_epoch"], data.at, torch.randn(4).tolist())).encode())
    return found.hexdigest()


def as_an_agent(folder: Path) -> None:
    """Start ranks as torchrun does."""
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import milepost.pytorch.recover.handler  # noqa: F401 - what a rank needs is there when it is forked

    config = LaunchConfig(
        1,
        1,
        2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    elastic_launch(config, forked)(folder)


def forked(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's own is not ours
    main(folder)


if __name__ == "__main__":
    if sys.argv[2:3] == ["agent"]:
        as_an_agent(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]))
