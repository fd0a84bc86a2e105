"""Sharded models become one export, of which each rank keeps and writes its share; what one rank meets is told to all. A1, A2"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from milepost.clock import FakeClock
from milepost.errors import MilepostError, SaveFailed
from milepost.pytorch import Contents, Saver
from milepost.pytorch.export import gathering, writing
from milepost.pytorch.export.contents import Tensors
from milepost.pytorch.export.naming import leftover_of
from milepost.store.posix import Posix
from tests.pytorch.dcp.ranks import GROUP_S, WAIT_S, Outcome, attempt, die, run
from tests.pytorch.export.made import read, step

WHOLE = {
    **{f"layer{number}": torch.arange(4096.0 * 4).reshape(64, 256) + number for number in range(9)},
    "experts": torch.arange(4096.0 * 16).reshape(4, 64, 256),
    "bias": torch.arange(5.0),
    "tied": torch.arange(4096.0 * 4).reshape(64, 256),
    "count": torch.tensor(3),
}
SAME = {"layer0": 1, "tied": 1}
TENSOR, FILE, PAGE = 4096 * 4 * 4, 150_000, 4096


def disk_form(found: Tensors) -> Tensors:
    """Leave out what is tied, and write experts one by one."""
    made = {name: tensor for name, tensor in found.items() if name not in ("experts", "tied")}
    if "experts" in found:
        made |= {f"expert{number}": each for number, each in enumerate(found["experts"].unbind(0))}
    return made


def contents(ranks: int) -> Contents:
    mesh = init_device_mesh("cpu", (ranks,)) if ranks > 1 else None

    def shard(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if mesh is None or name == "count":
            return tensor
        return distribute_tensor(tensor, mesh, [Replicate() if name == "layer3" else Shard(0)])

    tensors = {name: shard(name, tensor) for name, tensor in WHOLE.items()}
    tensors["tied"] = tensors["layer0"]
    return Contents(tensors, {"config.json": b"{}"}, disk_form, SAME)


class Told(Posix):
    """Do something once before a write, and remember which files were made and what was kept for them."""

    def __init__(self) -> None:
        self.saver: Saver | None = None
        self.before_write: Callable[[], object] | None = None
        self.made: list[str] = []
        self.staged_bytes = 0
        self.blind = False

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name == "open_new":
            self.made.append(os.path.basename(args[0]).removesuffix(".part"))
            if self.saver is not None:
                self.staged_bytes = self.saver.staged_bytes
        if name == "write" and self.before_write is not None:
            act, self.before_write = self.before_write, None
            act()
        return function(*args, **kwargs)

    def is_directory(self, path: str) -> bool:
        return not (self.blind and path.endswith(".new")) and super().is_directory(path)


def exporter(place: str, mode: Any, posix: Posix | None = None, **settings: Any) -> Saver:
    settings = {"max_shard": FILE, "trial": "t", **settings}
    return Saver(place, user="me", experiment="e", mode=mode, posix=posix, **settings)


def nothing_half(place: str | Path, trial: str = "t") -> bool:
    directory = Path(place) / "checkpoints/me/e" / trial / "default"
    return not directory.exists() or not any(leftover_of(path.name) for path in directory.iterdir())


def is_whole(path: str | Path) -> bool:
    found = read(path)
    expected = disk_form(WHOLE)
    return found.keys() == expected.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@dataclass(frozen=True)
class Share:
    path: str
    staged: int
    files: list[str]


def shares(rank: int, place: str, ranks: int) -> dict[str, Share]:
    found = {}
    for name, mode, blind in (("sync", "sync", False), ("async", "async", False), ("blind", "async", rank == 1)):
        posix = Told()
        with exporter(place, mode, posix, trial=name, freq_steps=2) as saver:
            posix.saver, posix.blind = saver, blind
            paths = [saver.save_if_due(contents(ranks), step(number)) for number in range(3)]
            assert paths[0] is paths[2] is None
            kept = max(posix.staged_bytes, saver.staged_bytes)
            saver.wait()
        found[name] = Share(str(paths[1]), kept, [file for file in posix.made if file.endswith(".safetensors")])
    return found


def test_each_rank_keeps_and_writes_its_share_and_the_files_are_those_of_one_process(tmp_path: Path) -> None:
    with exporter(str(tmp_path / "one"), "sync") as saver:
        reference = Path(saver.save(contents(1), step(1)))
    total = sum(tensor.nbytes for tensor in disk_form(WHOLE).values())
    for ranks in (2, 4):
        place = tmp_path / str(ranks)
        outcomes: list[dict[str, Share]] = run(ranks, shares, place, str(place), ranks)
        for mode in ("sync", "async", "blind"):
            of_ranks = [outcome[mode] for outcome in outcomes]
            writers = [share for rank, share in enumerate(of_ranks) if mode != "blind" or rank != 1]
            for share in writers:
                assert 0 < share.staged <= total / len(writers) + FILE + len(WHOLE) * PAGE
            assert sum(share.staged for share in of_ranks) <= total + (len(WHOLE) + ranks) * PAGE
            (path,) = {share.path for share in of_ranks}
            ours = {file.name: file.read_bytes() for file in Path(path).iterdir()}
            assert ours == {file.name: file.read_bytes() for file in reference.iterdir()}
            assert sorted(file for share in of_ranks for file in share.files) == sorted(
                name for name in ours if name.endswith(".safetensors")
            )
        blind = outcomes[1]["blind"]
        assert (blind.files, blind.staged) == ([], 0)
        assert nothing_half(place, "sync")


@dataclass(frozen=True)
class Failing:
    """Say what happens on which rank, and what both are told."""

    mode: str
    how: str
    rank: int
    kind: str


CASES = [
    *(Failing("sync", "disk", rank, "disk-full") for rank in (0, 1)),
    *(Failing("async", "disk", rank, "export-failed") for rank in (0, 1)),
    *(Failing("async", "memory", rank, "rank-failed") for rank in (0, 1)),
    Failing("sync", "model", 1, "bad-name"),
    Failing("sync", "interrupt in prepare", 1, "rank-failed"),
    *(Failing("async", "interrupt in stage", rank, "rank-failed") for rank in (0, 1)),
    *(Failing("sync", "interrupt in write", rank, "rank-failed") for rank in (0, 1)),
    Failing("async", "settings", 1, "ranks-differ"),
    Failing("sync", "finish", 1, "bad-finish"),
    Failing("sync", "elsewhere", 1, "not-shared"),
]


class Full:
    size_bytes = 0
    memory = memoryview(b"")

    def reserve(self, size_bytes: int) -> None:
        raise MemoryError("no room")

    def close(self) -> None:
        pass


class Interrupted:
    def save_pretrained(self, _: str) -> None:
        interrupt()


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fails(rank: int, place: str) -> list[tuple[str, str, int, bool]]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return [_fails(rank, place, str(number), case) for number, case in enumerate(CASES)]


def _fails(rank: int, place: str, trial: str, case: Failing) -> tuple[str, str, int, bool]:
    posix = Told()
    here = rank == case.rank
    saver = exporter(place, case.mode, posix, trial=trial, max_shard=FILE + (here and case.how == "settings"))
    live: Any = contents(2)
    tokenizer: Any = None
    place_one, write_shard = gathering.place, writing._write_shard
    if here and case.how == "memory":
        saver._memory = Full()
    elif here and case.how == "model":
        live = Contents(live.tensors, {"../outside": b""}, live.finish, live.same)
    elif here and case.how in ("disk", "interrupt in write"):
        posix.before_write = full if case.how == "disk" else interrupt
    elif here and case.how == "interrupt in prepare":
        tokenizer = Interrupted()
    elif here and case.how == "interrupt in stage":
        gathering.place = lambda *args: (interrupt(), place_one(*args))[1]
    elif here and case.how == "elsewhere":
        writing._write_shard = lambda *_: None
    elif case.how == "finish":
        live = Contents(live.tensors, finish=lambda found: {name: each for name, each in found.items() if each.sum().item()})
    try:
        saver.save(live, step(0), tokenizer=tokenizer)
        saver.wait()
        first = ""
    except MilepostError as error:
        first = error.kind
    except KeyboardInterrupt:
        first = "interrupted"
    finally:
        gathering.place, writing._write_shard = place_one, write_shard
    if case.how == "memory":
        saver._memory = None
    dist.barrier()
    left = nothing_half(place, trial) and not saver.exports()
    dist.barrier()
    if case.how == "settings":
        saver = exporter(place, case.mode, posix, trial=trial)
    path = saver.save(contents(2), step(1))
    saver.wait()
    saver.close()
    return first, path, len(saver.exports()), left


def test_what_one_rank_meets_is_raised_on_all_leaves_nothing_and_the_next_export_works(tmp_path: Path) -> None:
    outcomes = run(2, fails, tmp_path, str(tmp_path))
    for case, *of_ranks in zip(CASES, *outcomes, strict=True):
        for rank, (first, path, exports, left) in enumerate(of_ranks):
            expected = "interrupted" if case.how.startswith("interrupt") and rank == case.rank else case.kind
            assert (first, exports, left) == (expected, 1, True), (case, rank)
            assert is_whole(path)


def by_time(rank: int, place: str) -> list[bool]:
    clock = FakeClock()
    saver = exporter(place, "sync", freq_secs=10, clock=clock)
    made = []
    for number in range(3):
        clock.advance(seconds=6 if rank == 0 else 1)
        made.append(saver.save_if_due(contents(2), step(number)) is not None)
    saver.close()
    return made


def trains_on(rank: int, place: str) -> tuple[bool, str]:
    """Do collectives of training while another rank's files are not there yet, and export other models at once."""
    gate, posix = threading.Event(), Told()
    if rank == 1:
        posix.before_write = lambda: gate.wait(WAIT_S)
    with exporter(place, "async", posix) as saver, exporter(place, "async", trial="other") as other:
        path = saver.save(contents(2), step(0))
        other.save(contents(2), step(0))
        sums = []
        for number in range(50):
            summed = torch.full((1000,), float(number + rank))
            dist.all_reduce(summed)
            sums.append(bool((summed == 2 * number + 1).all()))
        early = os.path.exists(path)
        dist.barrier()  # each has looked
        gate.set()
        other.wait()
        saver.wait()
    assert not early
    return all(sums), path


def test_training_goes_on_with_its_own_collectives_while_an_export_is_written(tmp_path: Path) -> None:
    for right, path in run(2, trains_on, tmp_path, str(tmp_path / "beside")):
        assert right
        assert is_whole(path)
    assert run(2, by_time, tmp_path, str(tmp_path / "clocks")) == [[False, True, False]] * 2


def stands_still(rank: int, place: str) -> int:
    told, posix = Path(place, "told"), Told()
    if rank == 1:
        posix.before_write = told.read_bytes
    saver = exporter(place, "async", posix, timeout_s=1)
    saver.save(contents(2), step(0))
    if rank == 0:
        assert saver._job is not None
        saver._job._over.wait()
        told.write_bytes(b"")
    with pytest.raises(SaveFailed, match="lost each other"):
        saver.wait()
    dist.barrier()
    count = len(saver.exports())
    saver._timeout_s = GROUP_S
    dist.barrier()  # each has looked
    for number in (1, 2):
        path = saver.save(contents(2), step(number))
        saver.wait()
    saver.close()
    assert is_whole(path)
    return count


def test_nobody_waits_longer_beside_training_than_was_said_and_only_that_export_is_lost(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    assert run(2, stands_still, tmp_path, str(tmp_path)) == [0, 0]


def loses_one(rank: int, place: str, mode: Any, when: str, who: int) -> int:
    posix, live = Told(), contents(3)
    saver = exporter(place, mode, posix)
    saver.save(live, step(0))
    saver.wait()
    if rank == who and when == "before":
        die()
    if rank == who and when == "staging":
        gathering._keep = lambda *_: die()  # type: ignore[assignment, func-returns-value]
    if rank == who and when == "writing":
        posix.before_write = die
    if rank == who and when == "publishing":
        saver._shelf("default").publish = lambda *_: die()  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(MilepostError, match="lost each other"):
        _ = saver.save(live, step(1)), saver.wait()
    saver.close()
    return len(saver.exports())


@pytest.mark.parametrize(
    ("mode", "when", "who"),
    [
        ("sync", "before", 1),
        ("async", "staging", 1),
        ("sync", "writing", 1),
        ("async", "writing", 1),
        ("async", "writing", 0),
        ("async", "publishing", 0),
    ],
)
def test_a_rank_that_is_killed_fails_the_export_of_the_others_and_leaves_the_one_before(
    mode: str, when: str, who: int, tmp_path: Path
) -> None:
    outcomes: list[Outcome] = attempt(3, loses_one, tmp_path, str(tmp_path), mode, when, who)
    for rank, outcome in enumerate(outcomes):
        assert outcome.killed == (rank == who)
        if rank != who:
            assert outcome.value == 1, outcome.error
    with exporter(str(tmp_path), "sync") as saver:
        saver.save(contents(1), step(2))
        assert len(saver.exports()) == 2
        assert all(is_whole(path) for path in saver.exports())
    assert nothing_half(tmp_path)
