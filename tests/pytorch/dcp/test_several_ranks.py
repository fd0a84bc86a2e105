"""What one rank meets all ranks hear of, and none of them goes on alone. C16, A10, A14"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import milepost
from milepost.errors import MilepostError, StoreError
from milepost.publish.view import read
from milepost.pytorch.dcp import RunReader, RunWriter, as_error, choosing, load, reader, save
from milepost.testing.faults import FaultStore
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import blank, differences, sharded


def small(value: float, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.full((4, 3), float(value), dtype=dtype) + torch.arange(4.0, dtype=dtype)[:, None]
    return {"model": {"w": distribute_tensor(rows, mesh, [Shard(0)])}, "step": int(value)}


def told(action: Any) -> tuple[str, str, dict[str, Any]]:
    """Return what a rank is told: the error's class, its kind and its facts."""
    try:
        action()
    except MilepostError as error:
        return type(error).__name__, error.kind, dict(error.facts)
    return "", "", {}


def live_in(root: Path) -> dict[int, int]:
    return {number: summary.step for number, summary in sorted(read(local(root)).live.items())}


def fail_on_one(rank: int, root: str) -> Any:
    save(small(1), RunWriter(root, step=1))
    store = FaultStore(local(Path(root)))
    if rank == 1:
        store.fail("commit_blob", "*", StoreError("the disk is full", kind="disk-full", retryable=False), times=None)
    failed = told(lambda: save(small(2), RunWriter(store, step=2)))
    left = sorted(os.listdir(Path(root) / "blobs"))
    dist.barrier()
    saved = save(small(3), RunWriter(root, step=3))
    live = small(0)
    restored = load(live, root)
    return failed, left, saved.number, restored.step, differences(live, small(3)), sorted(os.listdir(Path(root) / "blobs"))


def test_what_fails_on_one_rank_is_raised_on_all_and_the_next_save_works(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for failed, left, number, step, found, after in run(2, fail_on_one, tmp_path, str(root)):
        kind, error_kind, facts = failed
        assert (kind, error_kind, facts["failed_on_ranks"]) == ("StoreError", "disk-full", "1")
        assert len(left) == 3, "what rank 0 had written was not named by any manifest"
        assert (number, step, found) == (2, 3, [])
        assert len(after) == 4, "and is gone with the next save"
    assert live_in(root) == {1: 1, 2: 3}


def load_the_damaged(rank: int, root: str) -> Any:
    live = blank(sharded(9))
    by_number = told(lambda: load(live, root, which=2))
    plain = None
    try:
        dcp.load(live, storage_reader=RunReader(root))
    except CheckpointException as error:
        plain = as_error(error).kind, sorted(error.failures)
    restored = load(live, root)
    return by_number, plain, restored, differences(live, sharded(5))


def save_two(rank: int, root: str) -> None:
    for seed in (5, 6):
        save(sharded(seed), RunWriter(root, step=seed))


@pytest.mark.parametrize(("writer", "readers"), [(0, "0"), (1, "1")])
def test_a_damaged_shard_is_named_with_its_rank_and_all_ranks_fall_back_to_the_same_generation(
    tmp_path: Path, writer: int, readers: str
) -> None:
    root = tmp_path / "run"
    run(2, save_two, tmp_path, str(root))
    shard = "optimizer/optim.state.w.0.exp_avg" + ("@4,0" if writer else "@0,0")
    blob, at = leaves_of(root, 2)[shard]
    with (root / blob).open("r+b") as file:
        file.seek(at + 3)
        byte = file.read(1)
        file.seek(at + 3)
        file.write(bytes([byte[0] ^ 1]))
    for by_number, plain, restored, found in run(2, load_the_damaged, tmp_path, str(root)):
        kind, error_kind, facts = by_number
        assert (kind, error_kind) == ("CorruptError", "damaged-leaf")
        assert (facts["shard"], facts["written_by_rank"], facts["generation"]) == (shard, writer, 2)
        assert facts["failed_on_ranks"] == readers
        assert plain == ("damaged-leaf", [int(readers)])
        assert (restored.generation, restored.step) == (1, 5)
        assert "damaged" in restored.skipped[0]
        assert found == []
    report = milepost.verify(root)
    assert [problem.name for problem in report.problems] == [blob]


def leaves_of(root: Path, number: int) -> dict[str, tuple[str, int]]:
    from milepost.publish import layout
    from milepost.publish.manifest import load_record
    from milepost.records import Manifest

    manifest = load_record(local(root), layout.manifest(number), Manifest)
    leaves = [leaf for component in manifest.components for leaf in component.leaves]
    return {leaf.path: (manifest.blobs[leaf.blob].name, leaf.start) for leaf in leaves}


def load_while_one_is_published(rank: int, root: str) -> Any:
    for value in (1, 2):
        save(small(value), RunWriter(root, step=value))
    if rank == 1:
        # As if this rank had looked just before the second was published.
        inner = choosing.choose_generation
        reader.choose_generation = lambda store, which, *args, **more: inner(store, 1, *args, **more)
    live = small(0)
    restored = load(live, root)
    return restored.generation, differences(live, small(2))


def test_ranks_that_have_found_two_generations_all_load_the_coordinators(tmp_path: Path) -> None:
    assert run(2, load_while_one_is_published, tmp_path, str(tmp_path / "run")) == [(2, [])] * 2


def save_to_places_that_are_not_one(rank: int, place: str) -> Any:
    elsewhere = told(lambda: save(small(1), RunWriter(f"{place}/only-{rank}", step=1)))
    dist.barrier()
    in_memory = told(lambda: save(small(1), RunWriter("memory://run", step=1)))
    save(small(1), RunWriter(f"{place}/run", step=1))
    return elsewhere, in_memory, told(lambda: load(small(0), f"{place}/{'run' if rank == 0 else 'nothing'}"))


def test_ranks_that_do_not_see_one_directory_are_told(tmp_path: Path) -> None:
    for elsewhere, in_memory, loaded in run(2, save_to_places_that_are_not_one, tmp_path, str(tmp_path)):
        assert elsewhere[:2] == ("ConflictError", "other-root")
        assert in_memory[:2] == ("UsageError", "not-shared")
        assert loaded[0] == "NotFoundError"


def save_two_states_with_cached_plans(rank: int, place: str) -> Any:
    for step in range(1, 4):
        for name, dtype in (("actor", torch.float32), ("critic", torch.bfloat16)):
            planner = DefaultSavePlanner(enable_plan_caching=True)
            save(small(step * 10, dtype), RunWriter(f"{place}/{name}", step=step), planner=planner)
    found = []
    for name, dtype in (("actor", torch.float32), ("critic", torch.bfloat16)):
        live = small(0, dtype)
        found.append((load(live, f"{place}/{name}").step, differences(live, small(30, dtype))))
    return found


def test_an_actor_and_a_critic_with_cached_plans_do_not_get_mixed_up_on_several_ranks(tmp_path: Path) -> None:
    assert run(2, save_two_states_with_cached_plans, tmp_path, str(tmp_path)) == [[(3, []), (3, [])]] * 2
    for name in ("actor", "critic"):
        assert milepost.verify(tmp_path / name).ok
        assert len(list((tmp_path / name / "blobs").iterdir())) == 6


def save_beside_training(rank: int, root: str) -> Any:
    group = dist.new_group(backend="gloo")
    numbers = []
    for value in (1, 2):
        live = small(value)
        future = dcp.async_save(live, storage_writer=RunWriter(root, step=value), process_group=group)
        live["model"]["w"].to_local().fill_(-1)
        dist.barrier()  # training goes on, in its own group
        numbers.append(future.result().storage_data.number)
    store = FaultStore(local(Path(root)))
    if rank == 1:
        store.fail("open_blob", "*", StoreError("no", kind="io", retryable=False), times=None)
    future = dcp.async_save(small(3), storage_writer=RunWriter(store, step=3), process_group=group)
    failed = future.exception()
    assert failed is not None
    live = small(0)
    restored = load(live, root, process_group=group)
    return numbers, type(as_error(failed)).__name__, restored.step, differences(live, small(2))


def test_an_async_save_on_several_ranks_is_of_what_was_there_and_its_failure_is_told_on_all(tmp_path: Path) -> None:
    assert run(2, save_beside_training, tmp_path, str(tmp_path / "run")) == [([1, 2], "StoreError", 2, [])] * 2
