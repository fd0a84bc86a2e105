"""Save one state by milepost and by what people use instead, each as its users would write it."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import distributed
from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from bench.goals import CLONE, DCP, DCP_PROCESS, DCP_REUSED, DCP_SAVE, SAFETENSORS, SAVE, SYNCED
from bench.machine import files_below
from bench.measure import Contender, Kind
from bench.states import Workload
from milepost import CheckpointEngine, Keep
from milepost.clock import SystemClock
from milepost.engine.settings import WriterKind
from milepost.records import Summary
from milepost.store.local import LocalStore
from milepost.store.posix import Posix

Finish = Callable[[], object]
"""Wait until the save is durable."""


@dataclass(frozen=True, slots=True)
class Saver:
    """Save a workload once per call of ``start``, which returns when training may go on."""

    name: str
    kind: Kind
    start: Callable[[], Finish]
    synced: bool = True
    """When it is finished, the disk has every byte; without it there is nothing to compare a durable save with."""
    clean: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None
    rest: Callable[[], object] = lambda: None
    """Waits for what is done beside training once the save is durable: the next sample is not to run beside it."""
    written: Callable[[], int] | None = None
    """Says how many bytes of data the last save wrote; asked before `clean`."""


def contender(saver: Saver, workload: Workload) -> Contender:
    """Return a saver as one that is measured: how long training waits, and how long until all of it is durable."""

    def sample() -> Mapping[str, float]:
        workload.change()
        started = time.perf_counter()
        finish = saver.start()
        stalled = time.perf_counter()
        finish()
        durable = time.perf_counter()
        figures = {"stall": stalled - started}
        if saver.synced:
            figures["durable"] = durable - started
        if saver.written:
            figures["written"] = float(saver.written())
        saver.rest()
        saver.clean()
        return figures

    return Contender(saver.name, saver.kind, sample)


@contextmanager
def closing(savers: Sequence[Saver]) -> Iterator[None]:
    """Close them all after the block."""
    try:
        yield
    finally:
        for saver in savers:
            saver.clean()
            saver.close()


def _raw_bytes(saved: Summary) -> int:
    """Return how much of what a generation wrote itself there is once it is unpacked."""
    return sum(blob.raw_bytes for blob in saved.blobs if saved._is_own(blob.name))


def milepost(
    workload: Workload,
    place: Path,
    *,
    posix: Posix | None = None,
    name: str = "milepost",
    whole: bool = True,
    writer: WriterKind = "thread",
) -> Saver:
    """Return milepost as a user sets it up, its arena warm. ``whole``: every array is to be written by every save."""
    root = place / name
    # By its path where no system call is to be seen: a writer process opens the store anew.
    where = LocalStore(root, SystemClock(), posix=posix) if posix else root
    engine = CheckpointEngine(where, state=workload.state, keep=Keep(last=2), writer=writer)
    engine.claim()
    steps = iter(range(1 << 40))
    newest: list[Summary] = []

    def start() -> Finish:
        engine.save(next(steps))
        return finish

    def finish() -> None:
        saved = engine.wait()
        if whole and (saved is None or _raw_bytes(saved) < workload.size_bytes):
            raise RuntimeError("milepost did not write every byte: what was measured is not what it is compared with")
        newest[:] = [saved] if saved else []

    workload.change()
    start()()
    rest = engine._background.settle
    rest()
    return Saver(name, "milepost", start, close=engine.close, rest=rest, written=lambda: newest[0].new_bytes)


def phases(root: Path) -> str:
    """Say from a run's own event log where the time of its saves went, in medians."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for log in sorted((root / "events").glob("*.jsonl")):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            for phase, text in event.get("milliseconds", {}).items() if event["event"] == "published" else ():
                found[phase].append(float(text))
    said = ", ".join(f"{phase} {statistics.median(values):.3g}" for phase, values in found.items())
    return f"milepost's thread, in ms: {said}"


def peers(workload: Workload, place: Path, *, warm: bool = True) -> list[Saver]:
    """Return whatever else can save this state here. A reused stager is ``warm``, as milepost's arena is."""
    file, folder = place / "peer.file", place / "peer.folder"
    tree: dict[str, Any] = dict(workload.tree)
    flat = dict(workload.tensors)
    stager = DefaultStager(StagingOptions(False, False, False, False))
    apart = _DcpProcess(tree, folder)
    if warm:
        stager.stage(tree)

    def clean() -> None:
        file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def written() -> int:
        return sum(path.stat().st_size for root in (file, folder) for path in files_below(root))

    def directly(save: Callable[[], object]) -> Callable[[], Finish]:
        def start() -> Finish:
            save()
            return lambda: None

        return start

    def async_save(reused: DefaultStager | None) -> Callable[[], Finish]:
        def start() -> Finish:
            saving = dcp.async_save(tree, checkpoint_id=folder, async_stager=reused, no_dist=True)
            assert isinstance(saving, Future)
            return saving.result

        return start

    def save_safetensors() -> None:
        save_file(flat, file)
        descriptor = os.open(file, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)

    def clone_and_go() -> Finish:
        pool = ThreadPoolExecutor(1)  # a thread a save: `background` looks at which core it runs on
        saving = pool.submit(_torch_save, copy.deepcopy(tree), file)
        pool.shutdown(wait=False)
        return saving.result

    made = [
        Saver(SAVE, "peer", directly(lambda: torch.save(tree, file)), synced=False, clean=clean),
        Saver(SYNCED, "peer", directly(lambda: _torch_save(tree, file)), clean=clean),
        Saver(SAFETENSORS, "peer", directly(save_safetensors), clean=clean),
        Saver(DCP_SAVE, "peer", directly(lambda: dcp.save(tree, checkpoint_id=folder, no_dist=True)), clean=clean),
        Saver(DCP, "peer", async_save(None), clean=clean),
        Saver(DCP_REUSED, "peer", async_save(stager), clean=clean, close=stager.close),
        Saver(DCP_PROCESS, "peer", apart.start, clean=clean, close=apart.close),
        Saver(CLONE, "peer", clone_and_go, clean=clean),
    ]
    return [dataclasses.replace(saver, written=written) for saver in made]


class _DcpProcess:
    """Let a process of torch's own write: staged in memory shared with it, which needs a process group of one."""

    def __init__(self, tree: dict[str, Any], folder: Path) -> None:
        self._tree, self._folder = tree, folder
        self._stager: DefaultStager | None = None

    def start(self) -> Finish:
        if self._stager is None:
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
            self._stager = DefaultStager(StagingOptions(False, True, False, False))
        saving = dcp.async_save(
            self._tree,
            checkpoint_id=self._folder,
            async_checkpointer_type=dcp.AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        assert isinstance(saving, Future)
        return saving.result

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()
            self._stager = None
            executor._CHECKPOINT_PROCESS = None  # it ends with its last reference
            distributed.destroy_process_group()


def _torch_save(tree: Mapping[str, Any], file: Path) -> None:
    with open(file, "wb") as out:
        torch.save(tree, out)
        out.flush()
        os.fsync(out.fileno())


def chosen(savers: Sequence[Saver], *names: str) -> list[Saver]:
    """Return those with these names, and close the others."""
    for saver in savers:
        if saver.name not in names:
            saver.close()
    return [saver for saver in savers if saver.name in names]
