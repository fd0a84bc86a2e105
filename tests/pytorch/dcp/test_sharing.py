"""A tensor that did not change is written once, and every generation that has it stands on that blob. DESIGN 4"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import milepost
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.pytorch.dcp import RunWriter, give_up, load, save
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import differences

KIB = 256


def state(value: float, frozen: float = 7.0) -> dict[str, Any]:
    reference = {f"w.{index}": torch.full((KIB, KIB), float(frozen + index)) for index in range(4)}
    return {"model": {"w": torch.full((8, 8), float(value))}, "reference": reference, "step": int(value)}


def new_bytes(root: str) -> list[int]:
    live = read(local(Path(root))).live
    return [live[number].new_bytes for number in sorted(live)]


def check(root: str, wanted: dict[str, Any], which: Any = "latest") -> None:
    live = state(0, 0)
    load(live, root, which=which, no_dist=True)
    assert differences(live, wanted) == []
    assert milepost.verify(root).ok


def test_what_did_not_change_is_written_once_and_outlives_the_generation_that_wrote_it(root: str) -> None:
    for value in range(1, 5):
        save(state(value), RunWriter(root, step=value, keep=Keep(last=2)), no_dist=True)
    assert all(size < 100_000 for size in new_bytes(root)), new_bytes(root)
    give_up(root)  # what they drop is deleted beside training
    assert len(os.listdir(Path(root) / "blobs")) == 3
    check(root, state(4))
    check(root, state(3), which=3)


def test_what_changed_is_never_shared(root: str) -> None:
    for value, frozen in ((1, 7), (2, 7), (3, 8), (4, 7)):
        save(state(value, frozen), RunWriter(root, step=value, keep=Keep(last=9)), no_dist=True)
    for number, (value, frozen) in enumerate(((1, 7), (2, 7), (3, 8), (4, 7)), 1):
        check(root, state(value, frozen), which=number)


def test_nothing_is_shared_with_what_this_claim_has_not_written_itself(root: str) -> None:
    save(state(1), RunWriter(root, step=1), no_dist=True)
    give_up(root)
    save(state(2), RunWriter(root, step=2), no_dist=True)
    live = state(0, 0)
    load(live, root, which=1, no_dist=True)
    save(live, RunWriter(root, step=3), no_dist=True)
    assert all(size > 1_000_000 for size in new_bytes(root)), new_bytes(root)
    check(root, state(1))


def test_nothing_is_shared_with_blobs_that_are_gone(root: str) -> None:
    save(state(1), RunWriter(root, step=1), no_dist=True)
    for blob in (Path(root) / "blobs").iterdir():
        blob.unlink()
    save(state(2), RunWriter(root, step=2), no_dist=True)
    live = state(0, 0)
    assert load(live, root, no_dist=True).generation == 2
    assert differences(live, state(2)) == []


def test_generations_that_are_to_be_independent_share_nothing(root: str) -> None:
    for value in range(1, 7):
        save(state(value), RunWriter(root, step=value, keep=Keep(last=4, independent=2)), no_dist=True)
    live = read(local(Path(root))).live
    names = [{blob.name for blob in live[number].blobs} for number in sorted(live)]
    assert any(one.isdisjoint(other) for one in names for other in names)
    check(root, state(6))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_shared_with_an_unhealthy_generation_is_as_unhealthy(root: str, bad: float) -> None:
    save({"model": {"w": torch.ones(KIB, KIB), "v": torch.ones(3)}}, RunWriter(root, step=1), no_dist=True)
    for step in (2, 3):
        spoilt = {"model": {"w": torch.full((KIB, KIB), bad), "v": torch.full((3,), float(step))}}
        save(spoilt, RunWriter(root, step=step), no_dist=True)
    assert [read(local(Path(root))).live[number].healthy for number in (1, 2, 3)] == [True, False, False]


def sharded(value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    frozen = {f"w.{index}": torch.arange(float(KIB * KIB)).reshape(KIB, KIB) + index for index in range(4)}
    reference = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in frozen.items()}
    return {"model": {"w": torch.full((8, 8), float(value))}, "reference": reference, "copied": torch.ones(KIB, KIB)}


def save_sharded(rank: int, root: str) -> list[str]:
    for value in range(1, 5):
        save(sharded(value), RunWriter(root, step=value, keep=Keep(last=3)))
    live = sharded(0)
    for tensor in live["reference"].values():
        tensor.to_local().zero_()
    load(live, root)
    return differences(live, sharded(4))


def test_ranks_share_what_any_of_them_has_written(tmp_path: Path) -> None:
    root = str(tmp_path / "run")
    assert run(2, save_sharded, tmp_path, root) == [[], []]
    assert all(size < 100_000 for size in new_bytes(root)[-2:]), new_bytes(root)
    assert milepost.verify(root).ok
