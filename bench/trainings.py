"""Save a training by `RecoverHandler`, and export its weights by `Saver`, beside what people use instead. Runs on each rank."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from bench.floors import Touched, allowance_s
from bench.goals import DCP_HF, DCP_OWN, DCP_OWN_REUSED, DIRECT, GATHER, MEMCPY, PLAN_DIRECT, SAFETENSORS
from bench.machine import children_peak_bytes, forget_peak, peak_bytes, resident_bytes
from bench.measure import timed
from bench.ranks import CLOSE, Deeds, Place
from bench.sharded import COUNT, Figures, Saving, settle
from milepost.pytorch import Contents, RecoverHandler, Saver, StepInfo, TrainEngine, dcp

SAVES = 3


class Recovering(Saving):
    """Save one engine by `RecoverHandler`."""

    def deeds(self) -> Deeds:
        """Return what can be measured on this rank."""
        touched, stager = Touched(self.workload.views), self._stager()
        model = torch.nn.Module()
        for name, tensor in self.tree["model"].items():
            model.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor, requires_grad=False))
        self.engines = {"default": TrainEngine(model)}
        self.steps = map(step_of, count())
        waiting, beside = self._handler("sync"), self._handler("async")
        self._dump(beside)()
        return {
            MEMCPY: lambda: {"stall": timed(touched.copy) + allowance_s(COUNT)},
            DIRECT: lambda: self._direct(touched),
            PLAN_DIRECT: lambda: self._planned(touched, stager),
            "milepost": lambda: {**self._timed(waiting, "sync"), **self._timed(beside, "stall")},
            DCP_OWN: lambda: self.saved(self._theirs(), "sync"),
            DCP_OWN_REUSED: lambda: self.stalled(self._theirs(), async_stager=stager),
            CLOSE: self._close,
        }

    def _handler(self, save_mode: Any) -> RecoverHandler:
        handler = RecoverHandler(
            self.place.path, experiment="bench", trial=save_mode, user="me", mode="on", save_mode=save_mode, stop=False
        )
        handler.load(self.engines)
        self.closing.append(handler.close)
        return handler

    def _dump(self, handler: RecoverHandler) -> Callable[[], object]:
        handler.dump(self.engines, next(self.steps), force=True)
        return handler.wait

    def _timed(self, handler: RecoverHandler, quantity: str) -> Figures:
        self.workload.change()
        self.begin()
        started = time.perf_counter()
        wait = self._dump(handler)
        stalled = time.perf_counter() - started
        wait()
        durable = time.perf_counter() - started
        settle()
        dist.barrier()
        return {"sync": durable} if quantity == "sync" else {"stall": stalled, "durable": durable}


class Exporting(Saving):
    """Export the same tensors as one file that everybody opens."""

    def deeds(self) -> Deeds:
        """Return what can be measured on this rank."""
        touched = Touched(self.workload.views)
        contents = Contents(self.tree["model"], {"config.json": b"{}"})
        steps = map(step_of, count())
        make = partial(Saver, self.place.path, experiment="bench", user="me")
        waiting, beside = make(trial="sync", mode="sync"), make(trial="async", mode="async")
        self.closing += [waiting.close, beside.close]
        beside.save(contents, next(steps))
        beside.wait()  # its memory is there
        folder = self.place.path / "export"
        return {
            MEMCPY: lambda: {"stall": timed(touched.copy) + allowance_s(COUNT)},
            DIRECT: lambda: self._direct(touched),
            GATHER: lambda: {"stall": timed(self._whole)},
            "milepost": lambda: {
                **self._waited_for(waiting, contents, next(steps)),
                **self._beside(beside, contents, next(steps)),
            },
            SAFETENSORS: lambda: self._gathered(folder),
            DCP_HF: lambda: self._consolidated(folder),
            CLOSE: self._close,
        }

    def _waited_for(self, saver: Saver, contents: Contents, step: StepInfo) -> Figures:
        self.workload.change()
        self.begin()
        figures = {"sync": timed(lambda: saver.save(contents, step))}
        self._remove(Path(saver.path(step)))
        return figures

    def _beside(self, saver: Saver, contents: Contents, step: StepInfo) -> Figures:
        self.workload.change()
        self.begin()
        started = time.perf_counter()
        saver.save(contents, step)
        stalled = time.perf_counter() - started
        saver.wait()
        durable = time.perf_counter() - started
        self._remove(Path(saver.path(step)))
        return {"stall": stalled, "durable": durable}

    def _gathered(self, folder: Path) -> Figures:
        self.workload.change()
        self.begin()
        figures = {"sync": timed(lambda: self._save_file(folder))}
        self._remove(folder)
        return figures

    def _save_file(self, folder: Path) -> None:
        """Gather what is in parts, as everybody does it, and let the first rank write."""
        whole = self._whole()
        if self.place.rank == 0:
            folder.mkdir()
            save_file(whole, folder / "model.safetensors")
            sync(folder)
        dist.barrier()

    def _whole(self) -> dict[str, torch.Tensor]:
        """Return all tensors, on the first rank."""
        whole: dict[str, torch.Tensor] = {}
        for name, tensor in self.tree["model"].items():
            gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.place.rank == 0:
                whole[name] = gathered
        return whole

    def _consolidated(self, folder: Path) -> Figures:
        self.workload.change()
        self.begin()
        started = time.perf_counter()
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
        torch_dcp.save(dict(self.tree["model"]), storage_writer=writer)
        returned = time.perf_counter() - started
        if self.place.rank == 0:
            sync(folder)
        dist.barrier()
        durable = time.perf_counter() - started
        self._remove(folder)
        return {"sync": durable, "sync, not durable": returned}

    def _remove(self, where: Path) -> None:
        dist.barrier()
        if self.place.rank == 0:
            shutil.rmtree(where)
        dist.barrier()


class Remembering(Saving):
    """Count the memory that saves and a load need beside the state, in ranks that do nothing else."""

    def deeds(self) -> Deeds:
        """Return what can be measured on this rank."""
        return {
            "milepost": lambda: self._all(self._ours, lambda: dcp.RunReader(self.place.path / "milepost"), self._stager),
            DCP_OWN: lambda: self._all(self._theirs, lambda: torch_dcp.FileSystemReader(self.place.path / "dcp"), None),
            DCP_OWN_REUSED: lambda: self._beside(self._theirs, self._stager),
            CLOSE: self._close,
        }

    def _all(self, to: Any, reader: Callable[[], Any], stager: Callable[[], Any] | None) -> Figures:
        torch_dcp.save(self.tree, **to())
        return {
            "extra, load": self._extra(lambda: torch_dcp.load(self.tree, storage_reader=reader())),
            "extra, sync": self._extra(lambda: self._saves(lambda: torch_dcp.save(self.tree, **to()))),
            **self._beside(to, stager),
        }

    def _beside(self, to: Any, stager: Callable[[], Any] | None) -> Figures:
        def saves() -> None:
            how = {"async_stager": stager()} if stager else {}
            self._saves(lambda: torch_dcp.async_save(self.tree, process_group=self.group, **to(), **how).result())  # type: ignore[union-attr]

        return {"extra": self._extra(saves)}

    def _saves(self, save: Callable[[], object]) -> None:
        for _ in range(SAVES):
            self.workload.change()
            save()

    def _extra(self, act: Callable[[], object]) -> float:
        before = resident_bytes()
        forget_peak()
        act()
        return float(peak_bytes() - before + children_peak_bytes())


def sync(folder: Path) -> None:
    """Wait until the disk has the files that lie in a directory."""
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def step_of(number: int) -> StepInfo:
    """Return a step of an epoch without end."""
    return StepInfo(epoch=0, epoch_step=number, global_step=number, steps_per_epoch=1 << 40)


def recovering(place: Place, total_bytes: int) -> Deeds:
    """Return what one rank does in the benchmark of `RecoverHandler`."""
    return Recovering(place, total_bytes).deeds()


def exporting(place: Place, total_bytes: int) -> Deeds:
    """Return what one rank does in the benchmark of exports."""
    return Exporting(place, total_bytes).deeds()


def remembering(place: Place, total_bytes: int) -> Deeds:
    """Return what one rank does in the benchmark of memory."""
    return Remembering(place, total_bytes).deeds()
