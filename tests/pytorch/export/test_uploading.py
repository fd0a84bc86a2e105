"""Only finished exports are uploaded, beside training, and nothing that fails there is training's business."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import MissingExtraError, UsageError
from milepost.pytorch import Saver, Upload
from milepost.pytorch.export import uploading
from milepost.pytorch.export.uploading import Uploads
from tests.pytorch.export.made import contents, step, value_of

HANG_S = 60


class RefusedError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"the hub says {status}")
        self.response = type("Response", (), {"status_code": status})()


class Hub:
    """Stand for ``huggingface_hub.HfApi``: the real client against a server is tested in tests/heavy/hf."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.got: list[float] = []
        self.messages: list[str] = []
        self.asked = 0
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        assert (repo_id, private, exist_ok) == ("me/policy", True, True)

    def upload_folder(self, *, folder_path: str, commit_message: str, **_: Any) -> None:
        self.asked += 1
        self.reached.set()
        assert self.open.wait(HANG_S)
        if self.failures:
            raise self.failures.pop(0)
        self.got.append(value_of(folder_path))
        self.messages.append(commit_message)


def saver(place: Path, hub: Hub, **settings: Any) -> Saver:
    upload = Upload("me/policy", client=hub, tries=3, close_wait_s=HANG_S)
    return Saver(place, user="me", experiment="e", trial="t", upload=upload, **settings)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "_FIRST_WAIT_S", 0.001)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_finished_export_goes_up_and_no_other_engines(mode: Any, tmp_path: Path) -> None:
    hub = Hub()
    with saver(tmp_path, hub, mode=mode) as exporter:
        path = exporter.save(contents(1.0), step(0))
        exporter.save(contents(2.0), step(0), engine="critic")
    assert hub.got == [1.0]
    assert hub.messages == ["e/t default epoch0epochstep0globalstep0"]
    assert (exporter.uploaded, exporter.upload_failure) == (path, "")


def test_a_passing_failure_is_tried_again_and_a_lasting_one_given_up(tmp_path: Path) -> None:
    hub = Hub(RefusedError(500), ConnectionError("gone"))
    with saver(tmp_path, hub) as exporter:
        exporter.save(contents(1.0), step(0))
    assert (hub.got, hub.asked) == ([1.0], 3)
    hub = Hub(*[RefusedError(503)] * 9)
    with saver(tmp_path, hub) as exporter:
        exporter.save(contents(1.0), step(1))
    assert (hub.got, hub.asked) == ([], 3)
    assert "503" in exporter.upload_failure
    assert exporter.uploaded is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_will_not_change_is_asked_once(status: int, tmp_path: Path) -> None:
    hub = Hub(*[RefusedError(status)] * 9)
    with saver(tmp_path, hub) as exporter:
        exporter.save(contents(1.0), step(0))
    assert hub.asked == 1
    assert str(status) in exporter.upload_failure
    assert len(exporter.exports()) == 1


def test_while_one_goes_up_only_the_newest_waits_and_neither_is_removed(tmp_path: Path) -> None:
    hub = Hub()
    hub.open.clear()
    with saver(tmp_path, hub, mode="sync", keep=1) as exporter:
        exporter.save(contents(0), step(0))
        assert hub.reached.wait(HANG_S)
        for number in (1, 2, 3):
            exporter.save(contents(number), step(number))
        assert [value_of(path) for path in exporter.exports()] == [0.0, 3.0]
        hub.open.set()
    assert hub.got == [0.0, 3.0]


def test_a_hub_that_never_answers_does_not_keep_a_run_from_ending(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub()
    hub.open.clear()
    exporter = Saver(tmp_path, user="me", experiment="e", trial="t", upload=Upload("me/policy", client=hub, close_wait_s=0.01))
    exporter.save(contents(1.0), step(0))
    exporter.wait()
    assert hub.reached.wait(HANG_S)
    exporter.close()
    assert "not waited for any longer" in caplog.text
    hub.open.set()


def test_what_fails_to_be_exported_is_not_uploaded(tmp_path: Path) -> None:
    import errno

    from milepost.errors import StoreError
    from milepost.testing.faults import fail_at

    hub = Hub()
    with saver(tmp_path, hub, mode="sync", posix=fail_at(12, errno.ENOSPC)) as exporter, pytest.raises(StoreError):
        exporter.save(contents(1.0), step(0))
    assert hub.asked == 0


def test_pauses_grow_and_a_close_ends_them() -> None:
    pauses: list[float] = []

    def wait(_: threading.Event, seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    uploads = Uploads(Upload("me/policy", client=Hub(*[ConnectionError()] * 9)), wait)
    uploads.offer("/", "message")
    uploads.close()
    assert pauses == [0.001, 0.002, 0.004]


def test_a_missing_client_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"milepost\[hf\]"):
        Saver(tmp_path, experiment="e", trial="t", upload=Upload("me/policy"))
    with pytest.raises(UsageError, match="tried once"):
        Uploads(Upload("me/policy", tries=0, client=Hub()))
