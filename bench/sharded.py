"""Hold one rank's part of a state, and save and load it by milepost and by DCP's own storage. Runs on each rank."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
import xxhash
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from bench.floors import Touched, allowance_s, read_and_digest
from bench.goals import (
    DCP_OWN,
    DCP_OWN_PROCESS,
    DCP_OWN_REUSED,
    DCP_OWN_UNSYNCED,
    DIGEST,
    DIRECT,
    MEMCPY,
    PLAN_DIGEST,
    PLAN_DIRECT,
    PLAN_READ,
    PROCESS_WRITER,
    READ,
)
from bench.machine import drop_cached, files_below
from bench.measure import timed
from bench.ranks import CLOSE, Deeds, Place
from bench.states import Workload, arrays
from milepost import Keep
from milepost.publish import layout
from milepost.pytorch import dcp
from milepost.pytorch.dcp import holding

COUNT = 200
Figures = Mapping[str, float]


def part_of(place: Place, total_bytes: int) -> tuple[Workload, dict[str, torch.Tensor]]:
    """Return this rank's part as the floors see it, and the state dict that it is a part of, in the same memory."""
    workload = arrays(COUNT, total_bytes // place.ranks, "")
    if place.ranks == 1:
        return workload, dict(workload.tensors)
    mesh = init_device_mesh("cpu", (place.ranks,))
    tensors = {name: DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False) for name, tensor in workload.tensors.items()}
    return workload, tensors


class Saving:
    """Save the same part in several ways. All of a contender's figures come from one turn."""

    def __init__(self, place: Place, total_bytes: int) -> None:
        self.place = place
        self.workload, tensors = part_of(place, total_bytes)
        self.tree: dict[str, Any] = {"model": tensors}
        self.group = dist.new_group(backend="gloo")
        """An async save has a group of its own: its thread and training must not share one."""
        self.step = 0
        self.closing: list[Callable[[], object]] = []

    def deeds(self) -> Deeds:
        """Return what can be measured on this rank."""
        touched = Touched(self.workload.views)
        stager, ours = self._stager(), self._stager()
        found: dict[str, Callable[[], Figures]] = {
            MEMCPY: lambda: {"stall": timed(touched.copy) + allowance_s(COUNT)},
            DIRECT: lambda: self._direct(touched),
            DIGEST: lambda: {"unchanged": timed(self._digest)},
            PLAN_DIRECT: lambda: self._planned(touched, stager),
            PLAN_DIGEST: lambda: self.saved(self._bare(self._digest), "unchanged", changed=False),
            "milepost": lambda: {
                **self.saved(self._ours(), "sync"),
                **self.saved(self._ours(), "unchanged", changed=False),
                **self.stalled(self._ours(), async_stager=ours),
            },
            DCP_OWN: lambda: {
                **self.saved(self._theirs(), "sync"),
                **self.saved(self._theirs(), "unchanged", changed=False),
                **self.stalled({"checkpoint_id": self.place.path / "dcp"}),
            },
            DCP_OWN_REUSED: lambda: self.stalled(self._theirs(), async_stager=stager),
            DCP_OWN_UNSYNCED: lambda: self.saved(self._theirs(sync_files=False), "sync, not durable"),
            CLOSE: self._close,
        }
        return found

    def processes(self) -> Deeds:
        """Return what is saved by a process of torch's own, on one rank."""
        shared = DefaultStager(StagingOptions(False, True, False, False))
        self.closing += [shared.close, dcp.end_process]
        apart = {"async_checkpointer_type": torch_dcp.state_dict_saver.AsyncCheckpointerType.PROCESS, "async_stager": shared}
        return {
            PROCESS_WRITER: lambda: self.stalled(self._ours("milepost-process"), **apart),
            DCP_OWN_PROCESS: lambda: self.stalled({"checkpoint_id": self.place.path / "dcp"}, **apart),
        }

    def saved(self, to: Mapping[str, Any], quantity: str, *, changed: bool = True) -> Figures:
        """Save while training waits."""
        figures, written = {}, quantity == "sync" and not isinstance(to["storage_writer"], BareWriter)
        if changed:
            self.workload.change()
        self.begin()
        figures[quantity] = timed(lambda: torch_dcp.save(self.tree, **to))
        return {**figures, **self._cleaned(to, written)}

    def stalled(self, to: Mapping[str, Any], **how: Any) -> Figures:
        """Save beside training."""
        self.workload.change()
        self.begin()
        started = time.perf_counter()
        saving = torch_dcp.async_save(self.tree, process_group=self.group, **to, **how)
        stalled = time.perf_counter() - started
        assert isinstance(saving, Future)
        saving.result()
        durable = time.perf_counter() - started
        return {"stall": stalled, "durable": durable, **self._cleaned(to, False)}

    def _stager(self) -> DefaultStager:
        """Return one that has staged once: its memory is there."""
        stager = DefaultStager(StagingOptions(False, False, False, False))
        stager.stage(self.tree)
        self.closing.append(stager.close)
        return stager

    def _ours(self, name: str = "milepost") -> Mapping[str, Any]:
        self.step += 1
        return {"storage_writer": dcp.RunWriter(self.place.path / name, step=self.step, keep=Keep(last=2))}

    def _theirs(self, **settings: Any) -> Mapping[str, Any]:
        return {"storage_writer": torch_dcp.FileSystemWriter(self.place.path / "dcp", **settings)}

    def _bare(self, act: Callable[[], object]) -> Mapping[str, Any]:
        return {"storage_writer": BareWriter(self.place.path / "bare", act)}

    def _digest(self) -> None:
        for view in self.workload.views:
            xxhash.xxh3_128_digest(view)

    def begin(self) -> None:
        """Begin on all ranks at once, and with no garbage: of what torch has loaded, a collection takes a tenth of a second."""
        gc.collect()
        dist.barrier()

    def _cleaned(self, to: Mapping[str, Any], written: bool) -> Figures:
        """Remove what a peer has left, and return how much that was; of milepost, check that it was all."""
        dist.barrier()
        folder = self.place.path / "dcp"
        first = self.place.rank == 0
        found = 0.0
        settle()
        if first and folder.exists():
            found = float(sum(path.stat().st_size for path in files_below(folder)))
            shutil.rmtree(folder)
        elif first and written and isinstance(to.get("storage_writer"), dcp.RunWriter):
            found = float(newest_bytes(self.place.path / "milepost"))
            if found < self.workload.size_bytes * self.place.ranks:
                raise RuntimeError("milepost did not write every byte: what was measured is not what it is compared with")
        dist.barrier()
        return {"written": found} if written else {}

    def _planned(self, touched: Touched, stager: DefaultStager) -> Figures:
        file = self.place.path / f"floor-{self.place.rank}"
        bare = self._bare(lambda: touched.write(file))
        figures = {**self.saved(bare, "sync"), **self.stalled(bare, async_stager=stager)}
        file.unlink()
        return figures

    def _direct(self, touched: Touched) -> Figures:
        file = self.place.path / f"floor-{self.place.rank}"
        started = time.perf_counter()
        touched.copy()
        staged = time.perf_counter()
        touched.write(file)
        ended = time.perf_counter()
        file.unlink()
        return {"durable": ended - started, "sync": ended - staged}

    def _close(self) -> Figures:
        for close in self.closing:
            close()
        return {}


class BareWriter(torch_dcp.FileSystemWriter):
    """Do one thing where DCP has planned, and write nothing else: what is below every storage that DCP can have."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__(path)
        self.act = act

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:  # noqa: ARG002 - DCP's signature
        self.act()
        results: Any = torch.futures.Future()
        results.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Leave it at that."""


class BareReader(torch_dcp.FileSystemReader):
    """Do one thing where DCP has planned, and read nothing else but its metadata."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__(path)
        self.act = act

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:  # noqa: ARG002 - DCP's signature
        self.act()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done


def settle() -> None:
    """Wait for deletions beside training: the next contender is not to run beside them."""
    for held in holding._held.values():
        getattr(held, "settle", lambda: None)()


def newest_bytes(root: Path) -> int:
    """Return how many bytes the newest generation of a run has written itself."""
    sizes: dict[int, int] = {}
    for path in (root / layout.BLOBS).iterdir():
        number = layout.blob_number(f"{layout.BLOBS}{path.name}") or 0
        sizes[number] = sizes.get(number, 0) + path.stat().st_size
    return sizes[max(sizes)]


def saving(place: Place, total_bytes: int) -> Deeds:
    """Return what one rank does in the benchmark of saves."""
    rank = Saving(place, total_bytes)
    return {**rank.deeds(), **(rank.processes() if place.ranks == 1 else {})}


class Loading(Saving):
    """Load the same part, saved once in each form, into the live tensors."""

    def deeds(self) -> Deeds:
        """Return what can be measured on this rank."""
        path = self.place.path
        touched = Touched(self.workload.views)
        touched.copy()
        file = path / f"floor-{self.place.rank}"
        touched.write(file)
        del touched
        torch_dcp.save(self.tree, **self._ours())
        torch_dcp.save(self.tree, **self._theirs())
        dist.barrier()
        ours, theirs = path / "milepost", path / "dcp"
        return {
            READ: lambda: self._loaded((file,), lambda: read_and_digest(file, self.workload.views)),
            PLAN_READ: lambda: self._loaded(
                (file, theirs),
                lambda: torch_dcp.load(
                    self.tree, storage_reader=BareReader(theirs, lambda: read_and_digest(file, self.workload.views))
                ),
            ),
            "milepost": lambda: self._loaded((ours,), lambda: torch_dcp.load(self.tree, storage_reader=dcp.RunReader(ours))),
            DCP_OWN: lambda: self._loaded(
                (theirs,), lambda: torch_dcp.load(self.tree, storage_reader=torch_dcp.FileSystemReader(theirs))
            ),
            CLOSE: self._close,
        }

    def _loaded(self, where: tuple[Path, ...], load: Callable[[], object]) -> Figures:
        for place in where:
            drop_cached(place)
        dist.barrier()
        cold = timed(load)
        for path in (path for place in where for path in files_below(place)):
            path.read_bytes()  # what a load has read in passing it does not leave in the page cache
        dist.barrier()
        return {"cold": cold, "warm": timed(load)}


def loading(place: Place, total_bytes: int) -> Deeds:
    """Return what one rank does in the benchmark of loads."""
    return Loading(place, total_bytes).deeds()
