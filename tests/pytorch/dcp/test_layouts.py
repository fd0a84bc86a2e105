"""What is saved by some ranks is loaded by as many, fewer or more, bit for bit. A6, A14, C16"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

import milepost
from milepost.pytorch.dcp import RunWriter, load, save
from milepost.records import Restored
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import blank, differences, sharded, whole

RANKS = (1, 2, 4)


def groups_of(rank: int) -> Iterator[tuple[int, dist.ProcessGroup]]:
    """Return the groups of 1, 2 and 4 ranks that this rank is in; all of the four make each."""
    made = [(ranks, dist.new_group(range(ranks))) for ranks in RANKS]
    return ((ranks, group) for ranks, group in made if rank < ranks)


def save_by_each_number_of_ranks(rank: int, place: Path) -> dict[int, list[int]]:
    return {
        ranks: [
            save(sharded(seed, group), RunWriter(place / f"by-{ranks}", step=seed), process_group=group).number for seed in (5, 6)
        ]
        for ranks, group in groups_of(rank)
    }


def load_by_each_number_of_ranks(rank: int, place: Path) -> dict[tuple[int, int], tuple[list[str], Restored]]:
    found = {}
    for loaded_by, group in groups_of(rank):
        for saved_by in RANKS:
            live = blank(sharded(99, group))
            restored = load(live, place / f"by-{saved_by}", process_group=group)
            found[saved_by, loaded_by] = differences(live, sharded(6, group)), restored
    return found


def test_what_some_ranks_save_as_many_fewer_and_more_load_bit_for_bit(tmp_path: Path) -> None:
    for rank, saved in enumerate(run(4, save_by_each_number_of_ranks, tmp_path, tmp_path)):
        assert saved == {ranks: [1, 2] for ranks in RANKS if rank < ranks}
    seen: Counter[tuple[int, int]] = Counter()
    for loaded in run(4, load_by_each_number_of_ranks, tmp_path, tmp_path):
        for (saved_by, loaded_by), (found, restored) in loaded.items():
            seen[saved_by, loaded_by] += 1
            assert found == [], (saved_by, loaded_by)
            assert (restored.generation, restored.step) == (2, 6)
            assert restored.exact is (loaded_by == saved_by), restored.inexact
    assert seen == {(saved_by, loaded_by): loaded_by for saved_by in RANKS for loaded_by in RANKS}
    for ranks in RANKS:
        report = milepost.verify(tmp_path / f"by-{ranks}")
        assert report.ok, report


def save_twice(rank: int, root: str) -> list[int]:
    return [save(sharded(seed), RunWriter(root, step=seed)).number for seed in (5, 6)]


def test_a_generation_of_several_ranks_is_loaded_by_one_process_as_whole_tensors(tmp_path: Path) -> None:
    root = str(tmp_path / "run")
    run(2, save_twice, tmp_path, root)
    loaded = milepost.load(root)
    assert isinstance(loaded, dict)
    wanted = whole(6)
    tensors = {f"model.{name}": tensor for name, tensor in wanted["model"].items()}
    tensors["model.copied"] = loaded["policy"]["model.copied"]
    assert differences(loaded["policy"], tensors) == []
    assert differences(loaded["optimizer"]["optim.state.w.0.exp_avg"], wanted["optim"]["state"]["w.0"]["exp_avg"]) == []
    assert loaded["extra"]["values.betas"] == (0.9, 0.999)
    assert torch.equal(loaded["extra"]["plain"], wanted["plain"])
    assert loaded["dcp"]["ranks"] == 2


def save_in_two_dimensions(rank: int, root: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    grid = torch.arange(35.0).reshape(5, 7)
    save(
        {
            "model": {
                "blocks": distribute_tensor(grid, mesh, [Shard(0), Shard(1)]),
                "hybrid": distribute_tensor(grid + 1, mesh, [Replicate(), Shard(0)]),
                "part": distribute_tensor(grid + 2, mesh["tensor"], [Shard(1)]),
            }
        },
        RunWriter(root, step=1),
    )


def test_tensors_in_two_dimensions_are_saved_once_and_come_back_whole(tmp_path: Path) -> None:
    root = str(tmp_path / "run")
    run(4, save_in_two_dimensions, tmp_path, root)
    grid = torch.arange(35.0).reshape(5, 7)
    wanted = {"model": {"blocks": grid, "hybrid": grid + 1, "part": grid + 2}}
    live = blank({"model": {name: torch.zeros(5, 7) for name in wanted["model"]}})
    load(live, root, no_dist=True)
    assert differences(live, wanted) == []
    whole_again = milepost.load(root, parts=["policy"])
    assert isinstance(whole_again, dict)
    assert differences(whole_again["policy"], {f"model.{name}": tensor for name, tensor in wanted["model"].items()}) == []
