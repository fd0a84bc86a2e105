"""The tests' own watch over what they leave sees what there is to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from milepost.clock import SystemClock
from milepost.service.resting import read_rest
from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings
from milepost.service.transports.host import SHARED
from tests.service.leftovers import give_back, processes_below


def test_memory_is_given_back_once_its_service_has_ended_and_that_of_one_that_runs_is_named(tmp_path: Path) -> None:
    with Server(tmp_path / "run", ServiceSettings(memory_bytes=1 << 20)):
        directory = Path(read_rest(str(tmp_path / "run"), SystemClock()).memory.directory)
        assert directory.parent == Path(SHARED)
        assert give_back(tmp_path) == [str(directory)]
        assert give_back(tmp_path / "another") == []
    assert directory.exists()
    assert give_back(tmp_path / "another") == []
    assert directory.exists()
    assert give_back(tmp_path) == []
    assert not directory.exists()


def test_a_process_is_found_by_what_it_was_given_and_by_where_it_is(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    for given, where in (([f"{tmp_path}/run"], None), ([], tmp_path)):
        with subprocess.Popen([*waits, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=where) as process:
            assert process.stdout is not None
            process.stdout.readline()
            (found,) = processes_below(tmp_path).values()
            assert found.startswith(sys.executable)
            assert processes_below(tmp_path / "another") == {}
            process.communicate()
    assert processes_below(tmp_path) == {}
