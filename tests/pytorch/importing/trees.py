"""Write what AReaL writes, with DCP's own writer: payloads of real ranks, and both of its layouts around them. A11"""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh

STEP = {"epoch": 1, "epoch_step": 2, "global_step": 7, "steps_per_epoch": 5}
LOADER = {"_snapshot": {"_snapshot_step": 3, "_main_snapshot": {"_sampler_iter_state": None}}, "_steps_since_snapshot": 0}
COUNTER = {"frequence_seconds": None, "frequency_steps": 2, "start_time": 1.5, "steps": 8, "last_time": 2.5, "last_steps": 8}


class Trainer:
    """Train a small network, sharded where there are several ranks, on the same data on each."""

    def __init__(self, seed: int, features: int = 6) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(features, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in (self.model[0], self.model[2], self.model):
                fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.features = features

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            drawn = torch.Generator().manual_seed(1000 * step)
            self.model(torch.randn(8, self.features, generator=drawn)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return what AReaL saves of an engine."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)

    def bits(self) -> dict[str, bytes]:
        found = {}
        moments = [(f"{i}.{key}", each) for i, state in enumerate(self.optimizer.state.values()) for key, each in state.items()]
        for name, tensor in (*self.model.named_parameters(), *moments):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[name] = whole.detach().numpy().tobytes()
        return found


SEEDS = {"default": 1, "critic": 2}


def trained(engine: str, last: int = STEP["global_step"]) -> Trainer:
    trainer = Trainer(SEEDS[engine])
    trainer.train(0, last)
    return trainer


def save_payloads(_rank: int, place: str) -> dict[str, dict[str, bytes]]:
    """Save the payload of each engine on all ranks, and return what was saved."""
    bits = {}
    for engine in SEEDS:
        trainer = trained(engine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_dcp.save({"dcp": trainer}, checkpoint_id=f"{place}/{engine}", no_dist=not dist.is_initialized())
        bits[engine] = trainer.bits()
    return bits


def write_manifest(place: Path, loader: Any = LOADER, step: dict[str, int] = STEP) -> None:
    place.mkdir(parents=True)
    (place / "step_info.json").write_text(json.dumps(step, indent=4))
    for name in ("saver", "evaluator", "checkpoint"):
        (place / f"{name}_info.json").write_text(json.dumps({"epoch": COUNTER, "step": COUNTER, "time": COUNTER}, indent=4))
    (place / "stats_logger_info.json").write_text(json.dumps({"last_commit_step": 7}, indent=4))
    (place / "dataloader_info.pkl").write_bytes(pickle.dumps(loader))


def pointer(step: int = 7, engines: tuple[str, ...] = ("default", "critic"), **more: object) -> str:
    record = {"engines": [*engines], "format_version": 1, "generation": f"generation_step{step:08d}", "global_step": step}
    return json.dumps({**record, **more}, indent=2, sort_keys=True)


def write_generations(trial: Path, payloads: Path, loader: Any = LOADER, step: dict[str, int] = STEP) -> Path:
    """Write the layout of generations, as a run that crashed in its next save leaves it; return the published generation."""
    number = step["global_step"]
    found = trial / "checkpoint_generations" / f"generation_step{number:08d}"
    write_manifest(found / "manifest", loader, step)
    shutil.copytree(payloads, found / "payloads")
    (trial / "LATEST").write_text(pointer(number))
    orphan = trial / "checkpoint_generations" / f"generation_step{number + 1:08d}"
    (orphan / "manifest").mkdir(parents=True)
    (orphan / "payloads" / "default").mkdir(parents=True)
    (orphan / "payloads" / "default" / "__0_0.distcp").write_bytes(b"half")
    (trial / ".LATEST.k2j3").write_text("{")
    return found


def write_older(trial: Path, payloads: Path, loader: Any = LOADER) -> Path:
    """Write the older layout."""
    write_manifest(trial / "recover_info", loader)
    for engine in SEEDS:
        shutil.copytree(payloads / engine, trial / engine / "recover_checkpoint")
        (trial / engine / "epoch1epochstep2globalstep7").mkdir()
    return trial
