"""Say why a command ended: every row of the table, what real processes leave behind, and whatever else is printed."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import CorruptError, MilepostError
from milepost.supervise.causes import End, StoppedRecord, classify
from milepost.supervise.failure_record import FailureRecord
from milepost.supervise.kinds import KINDS
from milepost.supervise.symptoms import TAIL_CHARACTERS, readable

KILLED = End(None, signal.SIGKILL)
FAILED = End(1, None)
SHELL = 128
OF_STDERR = 'Traceback (most recent call last):\n  File "/x/train.py", line 3, in <module>\n    step()\n'


def failed(**facts: object) -> End:
    return replace(FAILED, failure=FailureRecord(**{"pid": 1, "at_ns": 1, "message": "", "trace": "", **facts}))


def printed(last: str, *, code: int = 1) -> End:
    return End(code, None, stderr=f"epoch 3\n{OF_STDERR}{last}\n")


def stopped(path: str, code: int = 75, **facts: object) -> End:
    return End(code, None, stopped=StoppedRecord(path, code, 4, 120), published=True, **facts)  # type: ignore[arg-type]


TABLE: list[tuple[str, End]] = [
    ("done", End(0, None)),
    # Left because it was told to.
    ("preempted", stopped("SIGTERM", forwarded=(signal.SIGTERM,))),
    ("preempted", stopped("SIGUSR1")),
    ("preempted", replace(stopped("SIGTERM"), exit_code=None, signal=signal.SIGSEGV)),  # a device's library, at the very end
    ("preempted", replace(stopped("SIGTERM"), exit_code=None, signal=signal.SIGKILL, killed_after_grace=True)),
    ("preempted", stopped("stop_by")),
    ("exit", stopped("stop_by", 3)),  # it left by its own choice, with a code of its own
    ("exception", printed("EOFError: EOF when reading a line")),  # input()
    ("exit", End(1, None, stderr=OF_STDERR + "ConnectionResetError: [Errno 104]\nretried\n" + "step\n" * 99 + "bye\n")),
    ("exit", End(4, None, stderr="Connection reset by peer, retrying\n" + "step\n" * 99 + "bye\n")),
    ("notice", stopped("notice /run/preempt")),
    ("time-up", stopped("limit 24h")),
    ("time-up", stopped("SLURM end time")),
    ("interrupted", stopped("SIGINT", 130)),
    ("requeue-asked", End(75, None)),
    # One engine left well, another could not: what failed is what counts.
    ("disk-full", replace(failed(type="SaveFailed", kind="disk-full", exit_code=1), stopped=StoppedRecord("SIGTERM", 75))),
    # Signals, also through a shell.
    ("interrupted", End(130, None)),
    ("interrupted", End(None, signal.SIGINT)),
    ("interrupted", End(None, signal.SIGINT, forwarded=(signal.SIGINT,))),
    ("stopped-unsaved", End(None, signal.SIGTERM, forwarded=(signal.SIGTERM,))),
    ("stopped-unsaved", End(SHELL + signal.SIGTERM, None, forwarded=(signal.SIGTERM,))),
    ("stopped-unsaved", End(None, signal.SIGUSR1, forwarded=(signal.SIGUSR1,))),
    ("terminated", End(None, signal.SIGTERM)),
    ("terminated", End(143, None, forwarded=(signal.SIGUSR1,))),
    ("terminated", End(None, signal.SIGHUP)),
    ("terminated", End(None, signal.SIGRTMIN + 3)),
    ("grace-too-short", replace(KILLED, killed_after_grace=True, forwarded=(signal.SIGTERM,))),
    ("grace-too-short", End(137, None, killed_after_grace=True)),
    ("killed", KILLED),
    ("killed", End(137, None)),
    ("host-memory", replace(KILLED, oom_kills=1)),
    ("host-memory", End(137, None, oom_kills=2)),
    ("host-memory", replace(printed("RuntimeError: DataLoader worker (pid 4121) is killed by signal: Killed. "), oom_kills=1)),
    ("host-memory", replace(printed("EOFError"), oom_kills=1)),
    ("exception", replace(failed(type="ValueError", message="bad"), oom_kills=1)),  # somebody else's, in the same cgroup
    ("stopped-unsaved", replace(printed("EOFError"), exit_code=143, forwarded=(signal.SIGTERM,), oom_kills=1)),
    ("hang", replace(KILLED, hung=True, phase="saving")),
    ("hang", replace(KILLED, hung=True, killed_after_grace=True)),
    ("hang", End(75, None, hung=True)),
    ("hang", stopped("SIGTERM", hung=True)),  # it could still save when it was ended, and would hang again
    ("notice", replace(stopped("notice /run/preempt", hung=True), exit_code=None, signal=signal.SIGKILL)),  # at its very end
    ("preempted", replace(stopped("SIGTERM"), failure=FailureRecord(1, 1, "RuntimeError", "NCCL error: peer left", ""))),
    ("native", End(None, signal.SIGSEGV)),
    ("native", End(139, None)),
    ("native", End(None, signal.SIGBUS)),
    ("native", End(None, signal.SIGILL)),
    ("native", End(None, signal.SIGABRT)),
    ("native", End(134, None, stderr="free(): invalid pointer\n")),
    ("exit", End(None, signal.SIGXCPU)),
    # Aborts that say why.
    (
        "nccl",
        End(
            None,
            signal.SIGABRT,
            stderr="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
        ),
    ),
    (
        "nccl",
        End(
            134, None, stderr="terminate called after throwing 'std::runtime_error'\n what(): [PG 0 Rank 0] ProcessGroupNCCL ..."
        ),
    ),
    (
        "device",
        End(
            None,
            signal.SIGABRT,
            stderr="terminate called after throwing 'Error'\n  what():  CUDA error: an illegal memory access was encountered\n",
        ),
    ),
    ("memory", End(None, signal.SIGABRT, stderr="terminate called after throwing an instance of 'std::bad_alloc'\n")),
    (
        "shared-memory",
        End(
            None,
            signal.SIGBUS,
            stderr="ERROR: Unexpected bus error in worker. This might be caused by insufficient shared memory (shm).\n",
        ),
    ),
    # What an exception says.
    ("device-memory", failed(type="torch.OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.00 GiB.")),
    (
        "device-memory",
        printed("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.1 GiB total)"),
    ),
    ("device-memory", printed("RuntimeError: CUDA error: out of memory")),
    (
        "device-memory",
        printed("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."),
    ),
    ("device-assert", printed("RuntimeError: CUDA error: device-side assert triggered")),
    ("device", printed("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
    ("device", failed(type="RuntimeError", message="CUDA error: unspecified launch failure")),
    ("device", printed("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")),
    ("device", printed("RuntimeError: No CUDA GPUs are available")),
    ("device", End(1, None, stderr="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")),
    ("nccl", printed("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1251, unhandled system error")),
    ("nccl", failed(type="RuntimeError", message="NCCL communicator was aborted on rank 1: ncclRemoteError")),
    (
        "connection",
        printed(
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41"
        ),
    ),
    (
        "connection",
        printed(
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
        ),
    ),
    ("connection", printed("torch.distributed.DistNetworkError: The client socket has timed out after 60s")),
    ("connection", printed("ConnectionRefusedError: [Errno 111] Connection refused")),
    ("connection", printed("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded")),
    ("connection", failed(type="OSError", message="[Errno 113] No route to host", errno=errno.EHOSTUNREACH)),
    ("connection", failed(type="EOFError", message="")),
    # Disks.
    ("disk-full", failed(type="OSError", message="No space", errno=28)),
    ("disk-full", failed(type="OSError", message="quota", errno=122)),
    ("disk-full", printed("OSError: [Errno 28] No space left on device")),
    ("disk-full", failed(type="milepost.errors.SaveFailed", kind="disk-full", exit_code=1, hint="free some space")),
    ("disk-full", failed(type="milepost.errors.StoreError", kind="quota", exit_code=16)),
    ("disk-full", End(16, None, phase="saving")),
    ("stale", failed(type="OSError", message="stale", errno=116)),
    ("stale", failed(type="StoreError", kind="stale", exit_code=1)),
    ("io", failed(type="OSError", message="io", errno=5)),
    ("io", failed(type="StoreError", kind="io", exit_code=1)),
    ("read-only", failed(type="OSError", message="ro", errno=30)),
    ("read-only", failed(type="StoreError", kind="read-only", exit_code=12)),
    ("permission", failed(type="StoreError", kind="permission", exit_code=12)),
    # milepost's own.
    ("another-writer", failed(type="milepost.errors.ConflictError", kind="held", exit_code=11, hint="wait for it")),
    ("another-writer", End(11, None, phase="claiming")),
    ("another-writer", End(11, None, stderr="error: milepost: another process writes to this run root\n")),
    ("fenced", failed(type="milepost.errors.ConflictError", kind="fenced", exit_code=11)),
    ("fenced", failed(type="milepost.errors.ConflictError", kind="replaced", exit_code=11)),
    ("damaged", failed(type="CorruptError", kind="damaged-record", exit_code=13)),
    ("damaged", End(13, None, phase="resuming")),
    ("nothing-valid", failed(type="CorruptError", kind="nothing-valid", exit_code=14)),
    ("nothing-valid", End(14, None, phase="resuming")),
    ("mismatch", failed(type="MismatchError", kind="shapes", exit_code=15)),
    ("mismatch", End(15, None, phase="resuming")),
    ("usage", failed(type="UsageError", kind="bad-setting", exit_code=2)),
    ("exception", failed(type="UsageError", kind="half-loaded", exit_code=2)),
    ("import", failed(type="MissingExtraError", kind="missing-extra", exit_code=2)),
    ("internal", failed(type="InternalError", kind="broken", exit_code=1)),
    ("exit", End(13, None, stderr="unlucky\n")),  # a number that means something to milepost, of one who does not know it
    # The command's own.
    ("memory", failed(type="MemoryError", message="")),
    (
        "memory",
        printed("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array with shape (100000000000,)"),
    ),
    (
        "memory",
        printed("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to"),
    ),
    ("import", printed("ModuleNotFoundError: No module named 'gymnasuim'")),
    ("import", failed(type="ImportError", message="cannot import name 'x'")),
    ("syntax", End(1, None, stderr='  File "train.py", line 1\n    def\n       ^\nSyntaxError: invalid syntax\n')),
    (
        "usage",
        End(2, None, stderr="usage: train.py [-h] --env ENV\ntrain.py: error: the following arguments are required: --env\n"),
    ),
    ("not-started", End(2, None, stderr="python: can't open file '/x/trian.py': [Errno 2] No such file or directory\n")),
    ("not-started", End(127, None, stderr="bash: line 1: trian: command not found\n")),
    ("not-started", End(126, None)),
    ("output", End(120, None)),
    ("exception", printed("ZeroDivisionError: division by zero")),
    ("exception", printed("KeyError: 'reward'")),
    ("exception", failed(type="FileNotFoundError", message="no data", errno=2)),
    ("exit", End(3, None)),
    ("exit", End(255, None, stderr="giving up\n")),
    ("exit", End(-1 & 0xFFFF, None)),
]


@pytest.mark.parametrize(("kind", "end"), TABLE, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(TABLE)])
def test_every_end_has_its_cause(kind: str, end: End) -> None:
    assert classify(end).kind == kind


def test_every_kind_is_in_the_table_above() -> None:
    assert {kind for kind, _ in TABLE} == set(KINDS)


def test_the_table_of_the_page_is_the_one_that_decides() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "restarts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| (\w+) \| (\S+) \|$", page, re.MULTILINE)
    again = {kind: "budget" if row.retries is None else str(row.retries) for kind, row in KINDS.items()}
    expected = {kind: ("nobody", "–") if row.budget == "none" else (row.budget, again[kind]) for kind, row in KINDS.items()}
    assert {kind: (budget, count) for kind, budget, count in rows} == expected
    assert len(rows) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_failure_says_what_to_do_next(kind: str) -> None:
    row = KINDS[kind]
    speaks_for_itself = {"done", "preempted", "requeue-asked", "exception"}
    assert bool(row.advice) != (kind in speaks_for_itself)
    assert row.advice == row.advice.strip()
    assert row.retries is None or row.budget in ("user", "infrastructure")
    assert not row.back_after or row.budget in ("user", "infrastructure")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("device", "hard"), ("damaged", "data"), ("nothing-valid", "data"), ("killed", "soft"), ("preempted", "none")],
)
def test_the_kinds_of_fault_are_those_of_a_resume(kind: str, fault: str) -> None:
    end = next(end for found, end in TABLE if found == kind)
    assert classify(end).fault == fault


def test_a_milepost_error_that_nobody_caught_keeps_its_own_exit_code() -> None:
    """Python ends with 1; a scheduler that is to tell a full disk from a bug needs more."""
    for kind, code in {
        "disk-full": 16,
        "mismatch": 15,
        "nothing-valid": 14,
        "damaged": 13,
        "another-writer": 11,
        "usage": 2,
    }.items():
        assert KINDS[kind].exit_code == code
    assert CorruptError("x", kind="nothing-valid").exit_code == KINDS["nothing-valid"].exit_code


def test_the_hint_of_a_milepost_error_is_the_advice() -> None:
    cause = classify(failed(type="StoreError", kind="disk-full", exit_code=16, hint="free some space"))
    assert cause.advice == "free some space"
    assert "milepost gc" in classify(failed(type="OSError", errno=28)).advice


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (replace(KILLED, oom_kills=2), "the kernel killed it for memory (SIGKILL, oom_kill +2)"),
        (
            replace(KILLED, hung=True, phase="saving", step=1200),
            "its heartbeat stopped in phase 'saving' at step 1,200; it was ended",
        ),
        (stopped("SIGTERM"), "it left after SIGTERM at step 120"),
        (printed("KeyError: 'reward'"), "KeyError: 'reward'"),
        (End(3, None, stderr="\n\nout of luck\n\n"), "it ended with exit code 3; its last words: out of luck"),
        (failed(type="ValueError", message="x" * 900, step=7), "ValueError: " + "x" * 287 + "… at step 7"),
    ],
)
def test_the_words_say_what_happened(end: End, words: str) -> None:
    assert classify(end).text == words


def test_an_env_worker_that_failed_is_the_cause_and_not_the_pipe_that_it_left_broken() -> None:
    worker = f"Process ForkServerProcess-3:\n{OF_STDERR}ValueError: observation is NaN\n"
    cause = classify(End(1, None, stderr=worker + OF_STDERR + "EOFError\n"))
    assert (cause.kind, cause.budget) == ("exception", "user")
    assert cause.text == "a worker process failed: ValueError: observation is NaN"


def test_of_several_ranks_the_first_failure_is_the_cause() -> None:
    ranks = "".join(
        f"[rank{rank}]: " + f"{OF_STDERR}{last}".replace("\n", f"\n[rank{rank}]: ") + "\n"
        for rank, last in enumerate(["torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: Connection closed by peer"])
    )
    cause = classify(
        End(1, None, stderr=f"{ranks}{OF_STDERR}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n")
    )
    assert (cause.kind, cause.text) == ("device-memory", "torch.OutOfMemoryError: CUDA out of memory.")


def test_an_old_traceback_that_was_caught_is_not_the_cause_of_a_later_exit() -> None:
    text = f"{OF_STDERR}KeyError: 'x'\nnever mind\n" + "working\n" * 50 + "no more data\n"
    assert classify(End(3, None, stderr=text)).text.endswith("its last words: no more data")


# What real processes leave behind.


def ended(tmp_path: Path, script: str) -> End:
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, check=False)
    code = done.returncode
    return End(code if code >= 0 else None, -code if code < 0 else None, stderr=readable(done.stderr))


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("done", "print(1)"),
        ("import", "import no_such_thing"),
        ("syntax", "def"),
        ("memory", "bytearray(1 << 62)"),
        ("interrupted", "raise KeyboardInterrupt"),
        ("native", "import os; os.abort()"),
        ("native", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        ("terminated", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
        ("requeue-asked", "raise SystemExit(75)"),
        ("disk-full", "open('/dev/full', 'w').write('x' * 9999)"),
        ("connection", "import socket; socket.create_connection(('127.0.0.1', 1))"),
        ("exit", "raise SystemExit('no data')"),
        ("exception", "import sys; sys.stderr.write('\\x1b[31m50%\\r'); 1 / 0"),
        ("exception", "raise ValueError('two\\nlines')"),
        ("exception", "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  raise ValueError('x') from e"),
        ("exception", "class Grün(Exception): pass\nraise Grün('ß')"),
        ("output", "import sys; sys.stdout = open('/dev/full', 'w'); print(1)"),
    ],
)
def test_a_real_process_is_understood(kind: str, script: str, tmp_path: Path) -> None:
    assert classify(ended(tmp_path, script)).kind == kind


def test_an_exception_of_two_lines_is_told_with_its_first(tmp_path: Path) -> None:
    assert classify(ended(tmp_path, "raise ValueError('two\\nlines')")).text == "ValueError: two"


# Whatever was printed.

SNIPPETS = st.sampled_from(
    [
        *(end.stderr for _, end in TABLE if end.stderr),
        OF_STDERR,
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\r",
        "\n",
        "[rank0]: ",
        "\0",
        "Process X-1:\n",
    ]
)


@given(st.lists(SNIPPETS | st.text(max_size=40), max_size=12).map("".join), st.integers(0, 256) | st.none(), st.booleans())
def test_whatever_was_printed_an_end_has_a_cause_in_one_printable_line(text: str, code: int | None, as_record: bool) -> None:
    failure = FailureRecord(1, 1, text[:50], text, "") if as_record else None
    cause = classify(End(code, None if code is not None else signal.SIGABRT, stderr=text, failure=failure))
    assert cause.kind in KINDS
    assert cause.text.isprintable()
    assert 0 < len(cause.text) <= 400


@given(st.binary(max_size=300))
def test_any_bytes_become_text_without_colours_and_control(data: bytes) -> None:
    text = readable(data)
    text.encode()
    assert "\r" not in text.replace("\r\n", "")
    assert classify(End(1, None, stderr=text)).text.isprintable()


def test_what_was_printed_in_any_encoding_is_read() -> None:
    words = f"{OF_STDERR}OSError: [Errno 28] No space left on device: 'modèle'\n"
    for encoding in ("utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le"):
        assert classify(End(1, None, stderr=readable(words.encode(encoding)))).kind == "disk-full"


@pytest.mark.parametrize(
    "flood", ["x", "\x1b[", "\x1b[1;", "Process ", "gloo ", "Traceback (most recent call last)", "a.", "\x1b]", "worker"]
)
def test_a_flood_without_a_newline_is_read_from_its_end_and_at_once(flood: str) -> None:
    """What takes quadratic time here takes hours: the test ends only if it does not."""
    text = flood * (32_000_000 // len(flood))
    cause = classify(End(1, None, stderr=text + "\nOSError: [Errno 28] No space left on device\n"))
    assert cause.kind == "disk-full"
    assert len(readable(text.encode())) <= TAIL_CHARACTERS


def test_every_exit_code_of_a_milepost_error_is_understood() -> None:
    def tree(kind: type[MilepostError]) -> list[type[MilepostError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]

    for kind in tree(MilepostError):
        code = kind.exit_code if isinstance(kind.exit_code, int) else 13
        cause = classify(failed(type=kind.__name__, kind="anything", exit_code=code))
        assert KINDS[cause.kind].exit_code in (None, code)


def test_what_an_exception_was_raised_from_decides_where_it_says_more(tmp_path: Path) -> None:
    of_the_disk = (
        "try:\n  raise OSError(28, 'No space left on device')\nexcept OSError as e:\n  raise RuntimeError('not saved') from e"
    )
    assert classify(ended(tmp_path, of_the_disk)).kind == "disk-full"


def test_what_was_tried_and_caught_before_an_exception_does_not_decide(tmp_path: Path) -> None:
    tried = "try:\n  import no_such\nexcept ImportError:\n  pass\ntry:\n  open('/dev/full', 'wb', 0).write(b'x')\n"
    assert classify(ended(tmp_path, f"{tried}except OSError:\n  raise KeyError('x')")).kind == "exception"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ConflictError", "another-writer"), ("MismatchError", "mismatch"), ("CorruptError", "damaged"), ("UsageError", "usage")],
)
def test_an_error_of_mileposts_own_is_known_by_its_name_before_anybody_listened(name: str, kind: str) -> None:
    last = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nmilepost.errors.{name}: another'
    assert classify(End(1, None, stderr=f"{last}: pid=`7`\nhint: stop it\n")).kind == kind
    assert classify(End(1, None, stderr=f"{last.replace('milepost.errors', 'mine')}: pid=`7`\n")).kind == "exception"


def test_the_limit_of_milepost_run_is_called_a_limit() -> None:
    cause = classify(stopped("MILEPOST_STOP_AT"))
    assert (cause.kind, cause.text.startswith("it left after its time limit (MILEPOST_STOP_AT)")) == ("time-up", True)


@pytest.mark.parametrize("reason", ["Permission denied", "Operation not permitted"])
def test_a_run_root_that_may_not_be_made_is_not_tried_again(reason: str) -> None:
    """It is refused before anything listens, so that there is no record of it."""
    last = f"milepost.errors.StoreError: could not make the directory: {reason}: path=`/data/runs`"
    cause = classify(End(1, None, stderr=f"Traceback (most recent call last):\n  File 'train.py', line 3\n{last}\n"))
    assert (cause.kind, cause.text) == ("permission", last)


@pytest.mark.parametrize(
    ("path", "forwarded", "is_covered", "kind"),
    [
        ("notice /run/preempt", (), True, "notice"),
        ("limit 24h", (), True, "time-up"),
        ("SIGTERM", (signal.SIGTERM,), True, "preempted"),
        ("SIGTERM", (), True, "done"),  # a program that ends its own trainer, and is done
        ("notice /run/preempt", (), False, "done"),
    ],
)
def test_a_zero_of_a_wrapper_is_not_believed(path: str, forwarded: tuple[int, ...], is_covered: bool, kind: str) -> None:
    end = End(0, None, forwarded=forwarded, stopped=StoppedRecord(path, 75, 4, 100), is_covered=is_covered)
    assert classify(end).kind == kind
