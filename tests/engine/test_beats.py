"""A page that both see tells a supervisor how far a run is: whole, at no system call, and by nobody's child. B16"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock, SystemClock
from milepost.engine import beats
from milepost.engine.beats import Beat, Beats, Phase, read

NUMBERS = st.integers(0, 2**63 - 1)


def made_in(folder: Path) -> tuple[Beat, Path]:
    beat = Beat()
    beat.show(str(folder), "file:///runs/ppo", SystemClock())
    (path,) = folder.glob("beat-*")
    return beat, path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    beat, path = made_in(tmp_path)
    assert path.name.startswith(f"beat-{os.getpid()}-")
    assert path.stat().st_size == 4096
    assert read(path) == Beats(os.getpid(), "file:///runs/ppo", "", 1, -1, "claiming", 0, 0, 0)
    beat.name("file:///runs/ppo", "cafe")
    beat.resumed = beat.generation = 3
    beat.enter("resuming")
    beat.load(7)
    assert read(path) == Beats(os.getpid(), "file:///runs/ppo", "cafe", 4, -1, "resuming", 7, 3, 3)
    beat.load(0)
    beat.at(12)
    beat.publish(8)
    assert read(path) == Beats(os.getpid(), "file:///runs/ppo", "cafe", 7, 12, "training", 0, 3, 8)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.sampled_from(beats._PHASES), NUMBERS, NUMBERS), max_size=8))
def test_the_last_beat_is_the_one_that_is_read(told: list[tuple[int, Phase, int, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        beat, path = made_in(Path(folder))
        for number, (step, phase, loading, generation) in enumerate(told, start=2):
            beat.loading, beat.generation = loading, generation
            beat.at(step, phase)
            found = read(path)
            assert found is not None
            assert (found.count, found.step, found.phase, found.loading, found.generation) == (
                number,
                step,
                phase,
                loading,
                generation,
            )


def test_a_root_whose_name_is_no_text_is_named_all_the_same(tmp_path: Path) -> None:
    beat, path = made_in(tmp_path)
    beat.name("/runs/b\udcff\udcfe", "cafe")
    found = read(path)
    assert found is not None
    assert found.root == "/runs/b\udcff\udcfe"


def test_a_long_name_of_a_root_is_cut_and_harms_nothing(tmp_path: Path) -> None:
    beat = Beat()
    beat.show(str(tmp_path), "s3://" + "ü" * 9000, FakeClock())
    beat.name("s3://" + "ü" * 9000, "r" * 500)
    (path,) = tmp_path.glob("beat-*")
    found = read(path)
    assert found is not None
    assert found.run_id == "r" * 64
    assert found.root.startswith("s3://üüü")
    assert found.count == 2


def test_a_beat_is_read_whole_while_it_is_written(tmp_path: Path) -> None:
    beat, path = made_in(tmp_path)
    ended = threading.Event()

    def write() -> None:
        for step in range(20_000):
            beat.loading = beat.resumed = beat.generation = step + 1
            beat.at(step)
        ended.set()

    writer = threading.Thread(target=write, name="milepost-test-beats")
    writer.start()
    counts = []
    while not ended.is_set():
        found = read(path)
        assert found is not None
        assert found.count == 1 or found.step + 1 == found.loading == found.generation == found.count - 1
        counts.append(found.count)
    writer.join()
    assert counts == sorted(counts)


def test_a_slot_that_was_left_half_written_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    beat, path = made_in(tmp_path)
    beat.at(1)
    beat.at(2)
    page = bytearray(path.read_bytes())
    at = beats._SLOTS[beat.count & 1]
    page[at : at + 8] = (99).to_bytes(8, "little")  # its first number is the next one's, its last is not
    path.write_bytes(page)
    found = read(path)
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096), b"\xff" * 4096], ids=["empty", "short", "zeros", "ones"])
def test_what_is_no_beat_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "beat-1-2"
    path.write_bytes(content)
    assert read(path) is None
    assert read(tmp_path / "nowhere") is None
    assert read(tmp_path) is None


def test_a_forked_child_writes_nothing_into_it(tmp_path: Path) -> None:
    beat, path = made_in(tmp_path)
    beat.at(5)
    child = os.fork()
    if child == 0:
        try:
            beat.at(6)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = read(path)
    assert found is not None
    assert (found.step, found.pid) == (5, os.getpid())


def test_what_a_killed_process_wrote_last_is_still_there(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from milepost.clock import SystemClock\n"
        "from milepost.engine.beats import Beat\n"
        "beat = Beat()\n"
        f"beat.show({str(tmp_path)!r}, 'file:///x', SystemClock())\n"
        "beat.name('file:///x', 'cafe')\n"
        "beat.enter('resuming')\n"
        "beat.load(4)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (path,) = tmp_path.glob("beat-*")
    found = read(path)
    assert found is not None
    assert (found.run_id, found.phase, found.loading) == ("cafe", "resuming", 4)


def test_a_slot_that_is_overwritten_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat, path = made_in(tmp_path)
    beat.at(1)
    beat.at(2)
    good = path.read_bytes()
    at = beats._SLOTS[beat.count & 1]
    # Its two numbers are of the beat before, and what lies between them is of the next: it looks whole.
    torn = good[: at + 8] + (77).to_bytes(8, "little") + good[at + 16 :]
    pages = iter([torn, good, good, good])
    monkeypatch.setattr(os, "pread", lambda *_: next(pages))
    found = read(path)
    assert found is not None
    assert found.step in (1, 2)
