from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.clock import FakeClock
from milepost.errors import StoreError
from milepost.supervise.failure_record import FailureRecord, Watch, failure_of, read_failures, trace_of

DIES = """
import os, sys
from milepost.clock import SystemClock
from milepost.supervise.failure_record import Watch
sys.excepthook = lambda *_: print("the hook that was there", flush=True)
Watch(sys.argv[1], SystemClock(), lambda: 7)
{}
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DIES.format(code), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def raised(number: int, *, other: bool = False) -> BaseException:
    try:
        if other:
            raise ValueError(f"no such number: {number}")
        raise ValueError(f"no such number: {number}")
    except ValueError as error:
        return error


def test_an_uncaught_exception_is_written_down_and_the_hook_before_is_called(tmp_path: Path) -> None:
    done = run(tmp_path, "open('/nowhere/at all')")
    assert done.returncode == 1
    assert "the hook that was there" in done.stdout
    (record,) = read_failures(tmp_path)
    assert (record.type, record.errno, record.step, record.kind) == ("FileNotFoundError", 2, 7, "")
    assert "/nowhere/at all" in record.message
    assert "in <module>" in record.frames
    assert [path.name for path in tmp_path.iterdir()] == [f"failure-{record.pid}.json"]


def test_of_an_error_of_milepost_kind_exit_code_and_hint_are_written_down(tmp_path: Path) -> None:
    run(
        tmp_path,
        "from milepost.errors import CorruptError\nraise CorruptError('all is lost', kind='nothing-valid', hint='verify')",
    )
    (record,) = read_failures(tmp_path)
    assert (record.kind, record.exit_code, record.hint) == ("nothing-valid", 14, "verify")


@pytest.mark.parametrize("code", ["raise SystemExit(75)", "raise KeyboardInterrupt", "os.fork() or int('x')\nos.wait()"])
def test_what_is_no_failure_of_this_process_is_not_written_down(tmp_path: Path, code: str) -> None:
    run(tmp_path, code)
    assert read_failures(tmp_path) == ()


def test_an_exception_that_cannot_say_what_it_is_is_written_down_all_the_same(tmp_path: Path) -> None:
    run(tmp_path, "class Mute(Exception):\n    def __str__(self):\n        return 1 / 0\nraise Mute")
    (record,) = read_failures(tmp_path)
    assert record.message == "(its text cannot be had: ZeroDivisionError)"


def test_the_same_fault_in_the_same_place_has_the_same_trace_whatever_it_says() -> None:
    assert trace_of(raised(1)) == trace_of(raised(2))
    assert trace_of(raised(1)) != trace_of(raised(1, other=True))


def test_no_secret_of_a_message_is_written_down() -> None:
    error = StoreError("no", kind="network", retryable=True, hint="look at token=hunter22", url="s3://ada:hunter2@host/x")
    record = failure_of(error, pid=1, at_ns=0, step=-1)
    assert "hunter" not in repr(record)


def test_failures_are_read_newest_first_and_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    clock = FakeClock()
    for pid in (3, 1, 2):
        clock.advance(seconds=1)
        record = failure_of(ValueError(), pid=pid, at_ns=clock.wall_ns(), step=-1)
        (tmp_path / f"failure-{pid}.json").write_bytes(encoded(record))
    (tmp_path / "failure-9.json").write_bytes(b'{"pid": 9')
    (tmp_path / "failure-8.json").mkdir()
    assert [record.pid for record in read_failures(tmp_path)] == [2, 1, 3]
    assert read_failures(tmp_path / "nowhere") == ()


def test_a_hook_that_came_later_stays_when_the_watch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", before := lambda *_: None)
    watch = Watch(str(tmp_path), FakeClock(), lambda: 0)
    watch.end()
    assert sys.excepthook is before
    watch = Watch(str(tmp_path), FakeClock(), lambda: 0)
    monkeypatch.setattr(sys, "excepthook", later := lambda *_: None)
    watch.end()
    assert sys.excepthook is later


def encoded(record: FailureRecord) -> bytes:
    import msgspec

    return msgspec.json.encode(record)
