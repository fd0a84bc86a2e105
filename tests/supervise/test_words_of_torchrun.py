"""What torchrun ends with is always 1; its words here are those that it printed when its ranks were ended in these ways."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.engine.beats import Beats
from milepost.supervise.causes import End, StoppedRecord, classify
from milepost.supervise.evidence import end_of
from milepost.supervise.failure_record import FailureRecord
from milepost.supervise.policy import Limits, Policy
from milepost.supervise.torchrun import NAME, VARIABLE, exit_of_the_first, failure_in, first_failure

SUMMARY = """\
W1130 11:14:41.156000 32475 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 32504 closing signal SIGTERM
E1130 11:14:41.188000 32475 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/venv/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {empty}
=======================================================
r.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_11:14:41
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 32504)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 32504
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_11:14:41
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 32505) {name}
  error_file: <N/A>
  traceback : {traceback}
=======================================================
"""
TERMINATED = """\
W1130 11:14:56.054000 517 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers
Traceback (most recent call last):
  File "/venv/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 517 got signal: 15
"""
ERROR_FILE = {
    "message": {
        "message": "ValueError: bad reward",
        "extraInfo": {
            "py_callstack": 'Traceback (most recent call last):\n  File "/x/__init__.py", line 367, in wrapper\n    return f()\n'
            '  File "/tmp/r.py", line 9, in main\n    raise ValueError("bad reward")\nValueError: bad reward\n',
            "timestamp": "1796037285",
        },
        "errorCode": 1,
    }
}


def summary(code: int, name: str = "", traceback: str = "To enable traceback see: https://pytorch.org/docs") -> str:
    return SUMMARY.format(code=code, name=name, traceback=traceback, empty="")


KILLED = summary(-9, " (SIGKILL)", "Signal 9 (SIGKILL) received by PID 32505")
LOST = FailureRecord(7, 1, "milepost.errors.ServiceError", "the ranks have lost each other", "abc", kind="rank-lost", exit_code=1)
"""What the ranks that are left write down when one is gone."""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (KILLED, -9),
        (summary(75), 75),
        (summary(1), 1),
        (TERMINATED, -15),
        ("", None),
        ("Root Cause (first observed failure):\n", None),
    ],
)
def test_the_exit_of_the_first_rank_is_found(text: str, code: int | None) -> None:
    assert exit_of_the_first(text) == code


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (End(1, None, stderr=KILLED), "killed"),
        (End(1, None, stderr=KILLED, oom_kills=1), "host-memory"),
        (End(1, None, stderr=summary(-11, " (SIGSEGV)")), "native"),
        (End(1, None, stderr="[rank1]: ProcessGroupNCCL aborts\n" + summary(-6, " (SIGABRT)")), "nccl"),
        (End(1, None, stderr=summary(75)), "requeue-asked"),
        (End(1, None, stderr=TERMINATED), "terminated"),
        (End(1, None, stderr=TERMINATED, forwarded=(signal.SIGTERM,)), "stopped-unsaved"),
        (End(1, None, stderr=TERMINATED, forwarded=(signal.SIGTERM,), stopped=StoppedRecord("SIGTERM", 75)), "preempted"),
        (End(1, None, stderr='Traceback (most recent call last):\n  File "r.py"\nImportError: no\n' + summary(1)), "import"),
        (End(1, None, stderr=KILLED, failure=failure_in(json.dumps(ERROR_FILE).encode())), "exception"),
        # The one that is left says first that it has lost the other; what that one died of counts.
        (End(1, None, stderr=KILLED, failure=LOST), "killed"),
        (End(1, None, stderr=KILLED, failure=LOST, oom_kills=1), "host-memory"),
        (End(1, None, stderr=summary(-11, " (SIGSEGV)"), failure=LOST), "native"),
        (End(1, None, stderr=summary(1), failure=LOST), "connection"),
        (End(1, None, failure=LOST), "connection"),
        (End(1, None, stderr=summary(75), failure=LOST, stopped=StoppedRecord("SIGTERM", 75)), "preempted"),
    ],
)
def test_torchruns_1_is_what_its_first_rank_died_of(end: End, kind: str) -> None:
    assert classify(end).kind == kind


@pytest.mark.parametrize(
    ("seen", "signum"),
    [
        (End(1, None, stderr=summary(-11, " (SIGSEGV)")), 11),
        (End(1, None, stderr=KILLED), 9),
        (End(1, None, stderr=summary(1)), None),
        (End(0, None, stderr=summary(-11)), None),
    ],
)
def test_a_rank_that_crashes_while_it_loads_speaks_against_what_it_loads(seen: End, signum: int | None, tmp_path: Path) -> None:
    beats = Beats(1, "/runs/mine", "a-run", 3, -1, "resuming", 7, 0, 0)
    end = end_of(tmp_path, [beats], 1, seen)
    assert (end.rank_signal, end.loading) == (signum, ("a-run", 7))
    policy = Policy(Limits(), lambda: 0.5)
    skipped = [policy.decide(end, classify(end), asked_to_stop=False).skip for _ in range(2)]
    assert skipped == [(), (("a-run", 7),) if signum == signal.SIGSEGV else ()]


def test_a_script_under_record_leaves_its_failure_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own words, written as its ErrorHandler writes them: importing torch takes longer than all else here.
    (tmp_path / NAME).write_text(json.dumps(ERROR_FILE))
    failure = first_failure(tmp_path)
    assert failure is not None
    assert (failure.type, failure.message, failure.at_ns) == ("ValueError", "bad reward", 1796037285 * 10**9)
    assert "/tmp/r.py" in failure.frames


def test_that_torchrun_itself_was_told_to_end_is_no_failure() -> None:
    told = json.loads(json.dumps(ERROR_FILE))
    for name in ("SignalException", "torch.distributed.elastic.multiprocessing.api.SignalException"):
        told["message"]["message"] = f"{name}: Process 5852 got signal: 15"
        assert failure_in(json.dumps(told).encode()) is None


def test_the_same_failure_has_the_same_trace_whenever_it_comes() -> None:
    later = json.loads(json.dumps(ERROR_FILE))
    later["message"]["extraInfo"]["timestamp"] = "1796039999"
    later["message"]["message"] = "ValueError: another reward"
    elsewhere = json.loads(json.dumps(ERROR_FILE).replace("line 9", "line 10"))
    another = json.loads(json.dumps(ERROR_FILE).replace("ValueError: bad", "KeyError: bad"))
    traces = [
        failure.trace for each in (ERROR_FILE, later, elsewhere, another) if (failure := failure_in(json.dumps(each).encode()))
    ]
    assert traces[0] == traces[1]
    assert len(set(traces)) == 3


def test_what_milepost_recorded_itself_comes_before_what_torch_did(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(ERROR_FILE))
    code = (
        "import sys\nfrom milepost.clock import SystemClock\nfrom milepost.supervise.failure_record import Watch\n"
        "Watch(sys.argv[1], SystemClock(), lambda: 7)\nraise KeyError('x')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True)
    failure = first_failure(tmp_path)
    assert failure is not None
    assert (failure.type, failure.step) == ("KeyError", 7)


def test_an_attempt_that_left_nothing_has_no_failure(tmp_path: Path) -> None:
    assert first_failure(tmp_path) is None
    assert VARIABLE.isupper()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"message": "Signal 9"}', b'{"message": {"message": 1}}', b"[" * 100_000])
def test_another_file_is_no_failure(data: bytes) -> None:
    assert failure_in(data) is None


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text(max_size=5),
        lambda each: st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack"]), each, max_size=4),
    ).map(lambda each: json.dumps(each).encode())
)
def test_whatever_is_in_the_file_nothing_is_raised(data: bytes) -> None:
    failure_in(data)
