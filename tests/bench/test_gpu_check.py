"""The checks of a GPU run where there is none: on a device that copies late, and they find what is broken on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import gpu_check
from milepost.pytorch import devices

SMALL = ("--twin", "--megabytes", "4", "--saves", "2")


@pytest.fixture(autouse=True)
def hardly_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "BUSY_S", 0.2)


def test_the_checks_pass_on_the_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([*SMALL, "--out", str(tmp_path)]) == 0
    assert "nothing is shown about a GPU" in capsys.readouterr().out
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert len(found["found"]) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_check.json"]


def test_who_reads_before_the_device_has_copied_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = devices._Flight.land

    def hasty(flight: devices._Flight) -> None:
        real(devices._Flight(flight.slab, Nothing(), flight.parts))

    monkeypatch.setattr(devices._Flight, "land", hasty)
    assert gpu_check.main([*SMALL, "--out", str(tmp_path)]) == 1
    assert "FAILED  bits of saves while training goes on" in capsys.readouterr().out


class Nothing:
    def wait(self) -> None:
        """Wait for nothing."""


def test_without_a_gpu_it_says_that_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("not run")
    assert not list(tmp_path.iterdir())
