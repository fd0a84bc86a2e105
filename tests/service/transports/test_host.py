"""Who shares memory with whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from milepost.service import connect
from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings
from milepost.service.transports import host
from milepost.service.transports.host import HOST, host_id


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """Be on this host, whatever the tests are told; return the name of another, of which they leave nothing."""
    named = os.environ[HOST]
    monkeypatch.delenv(HOST)
    return named


def test_all_processes_of_a_start_of_this_machine_are_one_host_and_those_that_see_other_memory_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = host_id()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here.startswith(f"{boot}-")
    script = "from milepost.service.transports.host import host_id; print(host_id(), end='')"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == here
    monkeypatch.setattr(host, "SHARED", "/proc")
    assert host_id() not in (here, "")
    monkeypatch.setattr(host, "SHARED", str(tmp_path / "none"))
    assert host_id() == ""
    monkeypatch.setenv(HOST, "another")
    assert host_id() == "another"


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_version_is_mapped_by_who_is_here_and_by_nobody_else(
    is_here: bool, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"w": np.arange(1000)}
    memory = tmp_path / "memory"
    memory.mkdir()
    with (
        Server(tmp_path / "run", ServiceSettings(memory_bytes=1 << 20), memory_base=str(memory)),
        connect(tmp_path / "run", component="trainer", role="trainer") as trainer,
    ):
        trainer.commit(1, weights)
        if not is_here:
            # A host of this test's own: readers of one share what any of them has fetched.
            monkeypatch.setenv(HOST, f"{elsewhere}-{tmp_path}")
        with connect(tmp_path / "run", component="sampler", role="sampler") as sampler:
            got = sampler.fetch()
            assert got is not None
            assert got["w"].tolist() == [*range(1000)]
            assert (sampler.status().counts["bytes.bulk"] > 0) == (not is_here)
