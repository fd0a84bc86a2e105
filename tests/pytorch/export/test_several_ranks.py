"""Sharded models become one export, written by one rank; what one rank meets is told to all. A1, A2"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from milepost.clock import FakeClock
from milepost.errors import MilepostError
from milepost.pytorch import Contents, Saver
from milepost.testing.faults import fail_at
from tests.pytorch.dcp.ranks import attempt, die, run
from tests.pytorch.export.made import read, step

WHOLE = {"w": torch.arange(35.0).reshape(7, 5), "tied": torch.arange(35.0).reshape(7, 5), "b": torch.arange(3.0)}


def sharded(ranks: int) -> Contents:
    mesh = init_device_mesh("cpu", (ranks,))
    w = distribute_tensor(WHOLE["w"], mesh, [Shard(0)])
    b = distribute_tensor(WHOLE["b"], mesh, [Shard(0)])
    return Contents({"w": w, "tied": w, "b": b}, {"config.json": b"{}"}, same={"w": 1, "tied": 1})


def export(rank: int, place: str, ranks: int, mode: Any) -> tuple[int, str]:
    exporter = Saver(place, user="me", experiment="e", trial="t", mode=mode, freq_steps=2)
    contents = sharded(ranks)
    paths = [exporter.save_if_due(contents, step(number)) for number in range(3)]
    staged = exporter.staged_bytes
    exporter.wait()
    exporter.close()
    assert paths[0] is paths[2] is None
    return staged, str(paths[1])


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sharded_model_is_one_whole_export_and_only_the_first_rank_keeps_a_copy(ranks: int, mode: str, tmp_path: Path) -> None:
    outcomes = run(ranks, export, tmp_path, str(tmp_path), ranks, mode)
    assert len({path for _, path in outcomes}) == 1
    assert [staged > 0 for staged, _ in outcomes] == [mode == "async"] + [False] * (ranks - 1)
    found = read(outcomes[0][1])
    assert found.keys() == WHOLE.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in WHOLE.items())


def fails(rank: int, place: str, mode: Any, how: str) -> tuple[list[str], int]:
    posix = fail_at(12, errno.ENOSPC) if how == "disk" and rank == 0 else None
    exporter = Saver(place, user="me", experiment="e", trial="t", mode=mode, posix=posix)
    contents: Any = sharded(2)
    if how == "memory" and rank == 0:
        exporter._memory = Full()
    told = []
    for number in range(2):
        try:
            exporter.save("no model" if how == "model" and rank == 1 and number == 0 else contents, step(number))
            exporter.wait()
            told.append("")
        except MilepostError as error:
            told.append(error.kind)
        if rank == 0 and how == "memory":
            exporter._memory = None
    exporter.close()
    return told, len(exporter.exports())


class Full:
    size_bytes = 0
    memory = memoryview(b"")

    def reserve(self, size_bytes: int) -> None:
        raise MemoryError("no room")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("mode", "how", "kind"),
    [
        ("sync", "disk", "disk-full"),
        ("async", "disk", "export-failed"),
        ("async", "memory", "rank-failed"),
        ("sync", "model", "missing-extra"),
    ],
)
def test_what_one_rank_meets_is_raised_on_all_and_the_next_export_works(mode: str, how: str, kind: str, tmp_path: Path) -> None:
    kinds = (kind, "bad-model") if how == "model" else (kind,)
    for told, exports in run(2, fails, tmp_path, str(tmp_path), mode, how):
        assert told[0] in kinds
        assert told[1] == ""
        assert exports == 1


def by_time(rank: int, place: str) -> list[bool]:
    clock = FakeClock()
    exporter = Saver(place, user="me", experiment="e", trial="t", mode="sync", freq_secs=10, clock=clock)
    contents, made = sharded(2), []
    for number in range(3):
        clock.advance(seconds=6 if rank == 0 else 1)
        made.append(exporter.save_if_due(contents, step(number)) is not None)
    exporter.close()
    return made


def test_ranks_whose_clocks_differ_export_together(tmp_path: Path) -> None:
    assert run(2, by_time, tmp_path, str(tmp_path)) == [[False, True, False]] * 2


def loses_one(rank: int, place: str, mode: Any, when: str) -> tuple[str, int]:
    exporter = Saver(place, user="me", experiment="e", trial="t", mode=mode)
    contents = sharded(2)
    exporter.save(contents, step(0))
    exporter.wait()
    if rank == 1 and when == "before":
        die()
    if rank == 1:
        exporter._staged = lambda _: die()  # type: ignore[method-assign, assignment, func-returns-value]
    with pytest.raises(MilepostError) as caught:
        exporter.save(contents, step(1))
    exporter.close()
    return caught.value.kind, len(exporter.exports())


@pytest.mark.parametrize(("mode", "when"), [("sync", "before"), ("async", "staging")])
def test_a_rank_that_is_killed_fails_the_export_of_the_others_and_leaves_the_one_before(
    mode: str, when: str, tmp_path: Path
) -> None:
    left, killed = attempt(2, loses_one, tmp_path, str(tmp_path), mode, when)
    assert killed.killed
    assert left.value == ("rank-lost", 1), left.error
    whole = Path(tmp_path / "checkpoints/me/e/t/default/epoch0epochstep0globalstep0")
    assert all(torch.equal(read(whole)[name], tensor) for name, tensor in WHOLE.items())
