"""FSDP2 on the CPU: gone on with on as many ranks, a run ends with the same bits; on others it begins with them. A6, A14"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh

from milepost.pytorch.dcp import RunWriter, load, save
from tests.pytorch.dcp.ranks import run


class Trainer:
    """Train a small sharded network on data that each rank draws for itself."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            drawn = torch.Generator().manual_seed(1000 * step + dist.get_rank())
            self.model(torch.randn(8, 6, generator=drawn)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "lr_schedulers": self.scheduler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.scheduler.load_state_dict(state["lr_schedulers"])

    def bits(self) -> dict[str, bytes]:
        found = {}
        for name, tensor in (*self.model.named_parameters(), *moments(self.optimizer)):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[name] = whole.detach().numpy().tobytes()
        return found


def moments(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    states = list(optimizer.state.values())
    return [(f"{index}.{name}", tensor) for index, state in enumerate(states) for name, tensor in state.items()]


def train_and_save(rank: int, root: str) -> dict[int, dict[str, bytes]]:
    trainer = Trainer()
    bits = {}
    for step in (3, 6):
        trainer.train(step - 2, step)
        bits[step] = trainer.bits()
        save(trainer.state(), RunWriter(root, step=step))
    return bits


def go_on(rank: int, root: str) -> tuple[dict[str, bytes], dict[str, bytes], bool]:
    trainer = Trainer(seed=1)
    state = trainer.state()
    restored = load(state, root, which=1)
    trainer.restore(state)
    begun = trainer.bits()
    trainer.train(restored.step + 1, 6)
    return begun, trainer.bits(), restored.exact


def test_a_sharded_run_goes_on_with_the_same_bits_and_on_other_ranks_from_the_same(tmp_path: Path) -> None:
    # Some seven seconds: ten processes in which FSDP and the optimizer are built and train.
    root = str(tmp_path / "run")
    undisturbed = run(2, train_and_save, tmp_path, root)[0]
    for ranks in (2, 4):
        for begun, ended, exact in run(ranks, go_on, tmp_path, root):
            assert begun == undisturbed[3]
            assert exact is (ranks == 2)
            if exact:
                assert ended == undisturbed[6]
