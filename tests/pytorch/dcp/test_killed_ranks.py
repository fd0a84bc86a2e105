"""Any rank is killed at any phase: the others are told, what was acknowledged stands, and the next start works. A10, A14"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from milepost.errors import MilepostError
from milepost.pytorch.dcp import RunReader, RunWriter, load, save, together
from tests.pytorch.dcp.ranks import attempt, die
from tests.pytorch.dcp.states import blank, differences, numbers, sharded, whole

BEFORE = ("set_up_storage_writer", "prepare_global_plan", "write_data", "finish")
AFTER = ("prepare_global_plan", "write_data", "finish")
OTHERS = ("set_up_storage_writer", "write_data")
"""What a rank that does not coordinate is asked for."""
DEATHS = [(0, "before", step) for step in BEFORE] + [(0, "after", step) for step in AFTER]
DEATHS += [(1, "before", step) for step in OTHERS] + [(1, "after", "write_data"), (1, "within", "write_data")]


def dying(inner: type[Any], when: str, step: str, end: Any = die) -> type[Any]:
    """Return a writer or reader that ends its process before or after one of its steps, or when half its bytes are written."""

    def act(self: Any, *args: Any, **kwargs: Any) -> Any:
        if when == "within":
            kwargs.clear()
            self.blob_bytes = 64  # a file for each tensor: some are durable, others not yet begun
            from milepost.pytorch.dcp import writing

            write, count = writing._write_blob, 0

            def third(*args: Any) -> Any:
                nonlocal count
                count += 1
                return end() if count == 3 else write(*args)

            writing._write_blob = third
        if when == "before":
            end()
        answer = getattr(inner, step)(self, *args, **kwargs)
        if when == "after":
            end()
        return answer

    return type("Dying", (inner,), {step: act})


def save_and_die(rank: int, root: str, who: int, when: str, step: str) -> str:
    save(sharded(5), RunWriter(root, step=5))
    kind = dying(RunWriter, when, step) if rank == who else RunWriter
    try:
        save(sharded(6), kind(root, step=6))
    except MilepostError as error:
        return error.kind
    return "saved"


@pytest.mark.parametrize(("who", "when", "step"), DEATHS)
def test_a_rank_that_is_killed_in_a_save_fails_the_others_and_the_next_start_works(
    who: int, when: str, step: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    outcomes = attempt(2, save_and_die, tmp_path, str(root), who, when, step)
    assert outcomes[who].killed
    assert not outcomes[1 - who].error, outcomes[1 - who].error
    assert outcomes[1 - who].value == "rank-lost"
    # The next start, on another number of ranks: from what was published, and on from there.
    live = blank(whole_like())
    restored = load(live, root, no_dist=True)
    published = (who, when, step) == (0, "after", "finish")
    assert (restored.generation, restored.step) == ((2, 6) if published else (1, 5))
    assert differences(live, whole_like(6 if published else 5)) == []
    saved = save(live, RunWriter(root, step=7), no_dist=True)
    assert saved.number == restored.generation + 1
    report = milepost.verify(root)
    assert report.ok, report
    named = {blob.name for number in (1, saved.number) for blob in blobs_named(root, number)}
    assert {f"blobs/{path.name}" for path in (root / "blobs").iterdir()} <= named | {
        blob.name for blob in (blobs_named(root, 2) if published else ())
    }


def whole_like(seed: int = 0) -> dict[str, Any]:
    """Return the state of one rank with the names of the sharded one."""
    state = whole(seed)
    state["model"]["copied"] = numbers((2, 2), torch.float32, seed + 50)
    return state


def blobs_named(root: Path, number: int) -> tuple[Any, ...]:
    from milepost.publish import layout
    from milepost.publish.manifest import load_record
    from milepost.records import Manifest
    from tests.engine.training import local

    return load_record(local(root), layout.manifest(number), Manifest).blobs


def load_and_die(rank: int, root: str, who: int, when: str, step: str) -> str:
    if rank == who:
        together.RunReader = dying(RunReader, when, step)  # type: ignore[misc]
    try:
        load(blank(sharded(0)), root)
    except MilepostError as error:
        return error.kind
    return "loaded"


def save_one(rank: int, root: str) -> None:
    save(sharded(5), RunWriter(root, step=5))


@pytest.mark.parametrize(
    ("who", "when", "step"), [(0, "before", "read_metadata"), (1, "before", "read_data"), (0, "before", "read_data")]
)
def test_a_rank_that_is_killed_in_a_load_fails_the_others_and_changes_nothing(
    who: int, when: str, step: str, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    attempt(2, save_one, tmp_path, str(root))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    outcomes = attempt(2, load_and_die, tmp_path, str(root), who, when, step)
    assert outcomes[who].killed
    assert outcomes[1 - who].value == "rank-lost", outcomes[1 - who].error
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def stop_and_wait(rank: int, root: str) -> str:
    def stand_still() -> None:
        Path(root).with_name("stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)

    kind = dying(RunWriter, "before", "write_data", stand_still) if rank == 1 else RunWriter
    try:
        save(sharded(5), kind(root, step=5))
    except MilepostError as error:
        if rank == 0:
            os.kill(int(Path(root).with_name("stopped").read_text()), signal.SIGKILL)
        return error.kind
    return "saved"


def test_a_rank_that_stands_still_fails_the_others_when_the_process_group_has_waited_long_enough(tmp_path: Path) -> None:
    # Eight seconds, which is how long this process group waits: less, and a busy machine would not even get as far.
    outcomes = attempt(2, stop_and_wait, tmp_path, str(tmp_path / "run"), group_s=8)
    assert outcomes[0].value == "rank-lost", outcomes[0].error
    assert outcomes[1].killed
    with pytest.raises(milepost.NotFoundError):
        load(blank(whole(0)), tmp_path / "run", no_dist=True)
