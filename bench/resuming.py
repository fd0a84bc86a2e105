"""Bring a state back, from the disk and from the page cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from bench.apart_orbax import MISSING, Orbax, installed
from bench.floors import Touched, read_and_digest
from bench.goals import ORBAX, READ
from bench.machine import drop_cached, files_below
from bench.measure import Contender, Kind, Outcome, Setting, interleave, timed
from bench.savers import milepost
from bench.states import Workload, arrays
from milepost import CheckpointEngine, Keep


def measure(setting: Setting) -> Outcome:
    """Resume 1 GB of fp32 in 200 arrays into the live arrays."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    workload = arrays(200, size, f"{size / 1e6:.0f} MB fp32 in 200 arrays, into the live arrays")
    places = _write_all(workload, setting.place)
    loads: list[tuple[str, Kind, Callable[[], object]]] = [
        (READ, "floor", lambda: read_and_digest(places[READ], workload.views)),
        ("milepost", "milepost", lambda: _resume(workload, places["milepost"])),
        ("torch.load", "peer", lambda: _copy(torch.load(places["torch.load"], weights_only=True), workload)),
        ("safetensors", "peer", lambda: _copy(load_file(places["safetensors"]), workload)),
        ("dcp.load", "peer", lambda: state_dict_loader.load(dict(workload.tree), checkpoint_id=places["dcp.load"], no_dist=True)),
    ]
    contenders = [Contender(name, kind, _cold_and_warm(load, places[name])) for name, kind, load in loads]
    apart = Orbax(workload, setting.place) if installed() else None
    with apart or nullcontext():
        if apart:
            apart.ask("sync")
            contenders.append(Contender(ORBAX, "peer", lambda: _apart(apart)))
        rows = interleave(contenders, setting, rounds=setting.scaled(9, 3), budget_s=setting.scaled(80, 6))
    notes = ("milepost: constructing the engine, claiming the run and closing it included; peers verify no digest of the arrays",)
    return Outcome("resume", workload.words, rows, (*notes, "Orbax: into fresh arrays" if apart else MISSING))


def _apart(apart: Orbax) -> Mapping[str, float]:
    drop_cached(apart.folder)
    return {"cold": apart.ask("load")["load"], "warm": apart.ask("load")["load"]}


def _write_all(workload: Workload, place: Path) -> dict[str, Path]:
    """Save the same bytes once in every form that is read."""
    names = (READ, "milepost", "torch.load", "safetensors", "dcp.load")
    places = {name: place / name.replace(" ", "-").replace("+", "and") for name in names}
    touched = Touched(workload.views)
    touched.copy()
    touched.write(places[READ])
    torch.save(dict(workload.tree), places["torch.load"])
    save_file(dict(workload.tensors), places["safetensors"])
    state_dict_saver.save(dict(workload.tree), checkpoint_id=places["dcp.load"], no_dist=True)
    saver = milepost(workload, place)
    saver.close()
    os.sync()
    return places


def _cold_and_warm(load: Callable[[], object], place: Path) -> Callable[[], Mapping[str, float]]:
    def sample() -> Mapping[str, float]:
        drop_cached(place)
        cold = timed(load)
        for path in files_below(place):
            path.read_bytes()  # what a resume has read in passing it does not leave in the page cache
        return {"cold": cold, "warm": timed(load)}

    return sample


def _resume(workload: Workload, root: Path) -> None:
    with CheckpointEngine(root, state=workload.state, keep=Keep(last=2)) as engine:
        engine.resume()


def _copy(loaded: Mapping[str, torch.Tensor], workload: Workload) -> None:
    """Put what was loaded to where training has it, as ``load_state_dict`` does."""
    for name, tensor in workload.tensors.items():
        tensor.copy_(loaded[name])
