"""Exports beside training are of the moment they were asked at, cost memory once, and fail aloud. A2-A4"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost.pytorch
from milepost.errors import MissingExtraError, SaveFailed, StoreError, UsageError
from milepost.pytorch import Contents, Saver
from milepost.pytorch.export.job import Job
from milepost.pytorch.ranks import late_interrupt
from milepost.store.posix import Posix
from milepost.testing.faults import fail_at
from tests.pytorch.export.made import contents, read, step, value_of

HANG_S = 60


class Gated(Posix):
    """Let no file be written until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if name == "open_new":
            self.reached.set()
            assert self.open.wait(HANG_S)
        return function(*args, **kwargs)


def saver(place: Path, **settings: Any) -> Saver:
    return Saver(place, **{"user": "me", "experiment": "e", "trial": "t", **settings})


@pytest.fixture
def gate() -> Iterator[Gated]:
    gate = Gated()
    yield gate
    gate.open.set()


def test_an_export_lies_where_a4_says(tmp_path: Path) -> None:
    with saver(tmp_path, mode="sync") as exporter:
        path = exporter.save(contents(1.0), step(5), engine="critic")
    assert path == str(tmp_path / "checkpoints/me/e/t/critic/epoch1epochstep1globalstep5")
    assert value_of(path) == 1.0
    assert exporter.exports("critic") == [path]
    assert exporter.exports() == []
    assert sorted(os.listdir(tmp_path / "checkpoints/me/e/t")) == ["critic"]  # to ask for a path makes none


def test_each_engine_is_exported_at_its_marks(tmp_path: Path) -> None:
    with saver(tmp_path, freq_steps=2) as exporter:
        for number in range(6):
            for engine in ("default", "critic"):
                exporter.save_if_due(contents(number), step(number), engine=engine)
    for engine in ("default", "critic"):
        assert [value_of(path) for path in exporter.exports(engine)] == [1.0, 3.0, 5.0]


def test_what_changes_while_it_is_written_beside_is_not_in_it(tmp_path: Path, gate: Gated) -> None:
    with saver(tmp_path, mode="async", posix=gate) as exporter:
        live = contents(1.0)
        path = exporter.save(live, step(0))
        assert gate.reached.wait(HANG_S)
        assert not os.path.exists(path)
        for tensor in live.tensors.values():
            tensor.zero_()
        gate.open.set()
        exporter.wait()
        assert value_of(path) == 1.0


def test_the_copy_has_its_memory_once_and_gives_it_back_in_the_end(tmp_path: Path) -> None:
    exporter = saver(tmp_path, mode="async")
    exporter.save(contents(1.0), step(0))
    size = exporter.staged_bytes
    exporter.wait()
    memory = exporter._memory
    exporter.save(contents(2.0), step(1), engine="critic")
    assert (exporter._memory, exporter.staged_bytes) == (memory, size)
    assert 0 < size <= 5 * 4096
    exporter.close()
    assert exporter.staged_bytes == 0
    assert [value_of(path) for path in exporter.exports() + exporter.exports("critic")] == [1.0, 2.0]


def test_a_tied_tensor_is_copied_once(tmp_path: Path) -> None:
    shared = torch.arange(4096.0)
    tied = Contents({"a": shared, "b": shared}, finish=lambda found: {"a": found["a"]}, same={"a": 1, "b": 1})
    with saver(tmp_path, mode="async") as exporter:
        path = exporter.save(tied, step(0))
        assert exporter.staged_bytes == shared.nbytes
    assert list(read(path)) == ["a"]


def test_the_next_export_waits_for_the_one_before(tmp_path: Path, gate: Gated) -> None:
    with saver(tmp_path, mode="async", posix=gate) as exporter:
        exporter.save(contents(1.0), step(0))
        threading.Timer(0.05, gate.open.set).start()
        exporter.save(contents(2.0), step(1))
        exporter.wait()
        assert [value_of(path) for path in exporter.exports()] == [1.0, 2.0]


@pytest.mark.parametrize("ask", ["save", "save_if_due", "wait", "close"])
def test_what_fails_beside_training_is_told_by_the_next_call_once(ask: str, tmp_path: Path) -> None:
    exporter = saver(tmp_path, mode="async", posix=fail_at(12, errno.ENOSPC))
    exporter.save(contents(1.0), step(0))
    job = exporter._job
    assert job is not None
    assert job._over.wait(HANG_S)
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: exporter.save(contents(2.0), step(1)),
        "save_if_due": lambda: exporter.save_if_due(contents(2.0), step(1)),
        "wait": exporter.wait,
        "close": exporter.close,
    }
    with pytest.raises(SaveFailed, match="No space left") as caught:
        calls[ask]()
    assert isinstance(caught.value.__cause__, StoreError)
    assert exporter.exports() == []
    path = exporter.save(contents(3.0), step(2))
    exporter.close()
    assert value_of(path) == 3.0


def test_an_error_that_ends_training_is_the_one_that_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        with saver(tmp_path, mode="async", posix=fail_at(12, errno.EIO)) as exporter:
            exporter.save(contents(1.0), step(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert "an export that was written beside training failed" in caplog.text


def test_a_disk_that_fails_is_told_at_once_where_training_waits(tmp_path: Path) -> None:
    with saver(tmp_path, mode="sync", freq_steps=1, posix=fail_at(12, errno.ENOSPC)) as exporter:
        with pytest.raises(StoreError, match="No space left"):
            exporter.save_if_due(contents(1.0), step(0))
        assert exporter.save_if_due(contents(1.0), step(1))  # still due: what failed was not exported


@pytest.mark.parametrize(("mode", "warns"), [("async", True), ("auto", False)])
def test_a_copy_that_is_too_large_makes_training_wait(
    mode: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), saver(tmp_path, mode=mode, staging_bytes=4096) as exporter:
        for number in range(2):
            assert value_of(exporter.save(contents(number), step(number))) == number
        assert exporter.staged_bytes == 0
    assert caplog.text.count("training waits") == warns


def test_the_last_exports_are_kept_and_a_resumed_run_keeps_what_it_makes(tmp_path: Path) -> None:
    with saver(tmp_path, mode="sync", keep=2) as exporter:
        for number in range(4):
            exporter.save(contents(number), step(number))
        assert [value_of(path) for path in exporter.exports()] == [2.0, 3.0]
    with saver(tmp_path, mode="sync", keep=1) as again:
        path = again.save(contents(7.0), step(1))
        assert again.exports() == [path]


def test_nothing_is_removed_unless_that_was_asked_for(tmp_path: Path) -> None:
    with saver(tmp_path, mode="sync") as exporter:
        for number in range(8):
            exporter.save(contents(number), step(number))
        assert len(exporter.exports()) == 8


def test_an_export_that_is_made_again_is_the_newer_one(tmp_path: Path) -> None:
    with saver(tmp_path) as exporter:
        exporter.save(contents(1.0), step(0))
        path = exporter.save(contents(2.0), step(0))
    assert value_of(path) == 2.0


def test_floats_are_written_in_another_dtype_and_numbers_as_they_are(tmp_path: Path) -> None:
    for mode in ("sync", "async"):
        with saver(tmp_path / mode, mode=mode, dtype=torch.bfloat16) as exporter:
            live = contents(1.5)
            path = exporter.save(live, step(0))
        found = read(path)
        assert {name: tensor.dtype for name, tensor in found.items() if name != "count"} == dict.fromkeys(
            ["embed", "norm", "empty", "transposed"], torch.bfloat16
        )
        assert found["count"].dtype == torch.int64
        assert torch.equal(found["transposed"], live.tensors["transposed"].bfloat16())
        assert live.tensors["embed"].dtype == torch.float32


def test_a_live_writers_half_export_is_not_swept(tmp_path: Path, gate: Gated) -> None:
    with saver(tmp_path, mode="async", posix=gate) as exporter:
        path = exporter.save(contents(1.0), step(0))
        assert gate.reached.wait(HANG_S)
        with saver(tmp_path, mode="sync") as other:
            other.save(contents(2.0), step(1))
        gate.open.set()
        exporter.wait()
        assert value_of(path) == 1.0


def test_counters_go_on_where_they_were(tmp_path: Path) -> None:
    with saver(tmp_path, mode="sync", freq_steps=4) as exporter:
        assert not exporter.save_if_due(contents(1.0), step(2))
    with saver(tmp_path, mode="sync", freq_steps=4) as again:
        again.load_state_dict(exporter.state_dict())
        assert again.save_if_due(contents(1.0), step(4))


@pytest.mark.parametrize(
    "settings",
    [{"mode": "never"}, {"keep": 0}, {"dtype": torch.int8}, {"max_shard": "many"}, {"freq_steps": 0}, {"trial": "a/b"}],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_before_anything_is_made(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        saver(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_small_files_do_not_take_the_place_of_the_weights(tmp_path: Path) -> None:
    for name in ("model.safetensors", "../outside", "/etc/passwd"):
        with saver(tmp_path, mode="sync") as exporter, pytest.raises(UsageError, match="small file"):
            exporter.save(Contents({"w": torch.ones(1)}, {name: b""}), step(0))


def test_a_model_without_transformers_is_told_which_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with saver(tmp_path) as exporter, pytest.raises(MissingExtraError, match=r"milepost\[hf\]"):
        exporter.save(torch.nn.Linear(2, 2), step(0))


def test_a_ctrl_c_while_an_export_is_waited_for_does_not_lose_sight_of_it(tmp_path: Path, gate: Gated) -> None:
    exporter = saver(tmp_path, mode="async", posix=gate)
    path = exporter.save(contents(1.0), step(0))
    assert gate.reached.wait(HANG_S)
    striking = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _ = striking.start(), exporter.wait()
    threading.Timer(0.1, gate.open.set).start()
    exporter.save(contents(2.0), step(1))  # into the memory of the one before
    assert value_of(path) == 1.0
    exporter.close()


def test_a_ctrl_c_strikes_after_what_ranks_do_together_and_is_not_lost() -> None:
    done = []

    def talk() -> None:
        with late_interrupt(), late_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")
            raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt):
        talk()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_ends_without_closing_ends_after_its_export(tmp_path: Path) -> None:
    script = (
        "from tests.pytorch.export.made import *; from milepost.pytorch import Saver;"
        f"Saver({str(tmp_path)!r}, user='me', experiment='e', trial='t', mode='async').save(contents(1.0), step(0))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert [value_of(path) for path in saver(tmp_path).exports()] == [1.0]


def test_the_names_of_milepost_pytorch_are_there_and_cost_nothing_before() -> None:
    assert all(getattr(milepost.pytorch, name) for name in milepost.pytorch.__all__)
    script = "import sys, milepost.pytorch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_job_tells_an_interrupt_too() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    failure = Job("somewhere", interrupted).failed()
    assert isinstance(failure, SaveFailed)
    assert isinstance(failure.__cause__, KeyboardInterrupt)
