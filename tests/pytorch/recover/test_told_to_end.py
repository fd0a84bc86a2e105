"""What a handler of one rank does when it is told to end, and what `milepost run` sees of it. A5, B11, B16"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from milepost.engine import asked, beats
from milepost.engine.beats import Beats
from milepost.engine.supervised import RESUME, SKIP, STOP_AT, SUPERVISED
from milepost.errors import StoreError, UsageError
from milepost.lifecycle import stopping
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.stopping import Stop, Stopped
from milepost.publish.layout import manifest
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.pytorch import RecoverHandler, dcp
from milepost.pytorch.recover import reading
from milepost.records import Manifest
from tests.engine.training import local
from tests.pytorch.recover.training import Loader, at, digest, engines, run, train

TOLD = Stop(signals=("TERM",), grace="5m")


def handler_in(place: Path, **settings: Any) -> RecoverHandler:
    given: dict[str, Any] = {"mode": "on", "freq_steps": 4, "keep": Keep(last=9), "stop": False, **settings}
    return RecoverHandler(place, experiment="e", trial="t", user="u", **given)


def steps_of(handler: RecoverHandler) -> list[int]:
    return [summary.step for summary in read(local(Path(handler.root))).line.values()]


def test_a_signal_saves_at_the_next_dump_gives_the_root_up_and_ends_the_process(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    live, loader = engines(), Loader()
    with handler_in(tmp_path, stop=TOLD) as handler:
        assert handler.load(live, dataloader=loader) is None
        run(handler, live, loader, 2)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped) as stopped:
            run(handler, live, loader, 9, first=2)
    assert (stopped.value.code, stopped.value.path) == (75, "SIGTERM")
    assert stopped.value.summary is not None
    assert (stopped.value.summary.number, stopped.value.summary.step) == (1, 2)
    assert signal.getsignal(signal.SIGTERM) is before
    assert load_record(local(Path(handler.root)), manifest(1), Manifest).reason == "stopped by SIGTERM"
    again, place = engines(seed=9), Loader()
    with handler_in(tmp_path) as other:
        info = other.load(again, dataloader=place)
        assert info is not None
        assert info.last_step_info.next().global_step == 3
        assert digest(again, place) == digest(live, loader)


def test_a_process_whose_time_is_over_when_it_has_loaded_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, loader = engines(), Loader()
    with handler_in(tmp_path) as handler:
        handler.load(live, dataloader=loader)
        run(handler, live, loader, 4)
    monkeypatch.setenv(STOP_AT, "1")
    with pytest.raises(Stopped) as stopped, handler_in(tmp_path, stop=Stop(signals=())) as handler:
        handler.load(live, dataloader=loader)
    assert (stopped.value.code, stopped.value.path) == (75, STOP_AT)
    assert steps_of(handler) == [3]


def test_a_save_beside_training_that_failed_keeps_the_last_one_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live, loader, save = engines(modes=dict.fromkeys(("default", "critic", "ref"), "async")), Loader(), dcp.save

    def fails(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(dcp, "save", save)
        raise StoreError("no space left on device", kind="disk-full", retryable=False)

    with handler_in(tmp_path, stop=TOLD) as handler, caplog.at_level(logging.ERROR, logger="milepost"):
        handler.load(live, dataloader=loader)
        monkeypatch.setattr(dcp, "save", fails)
        run(handler, live, loader, 4)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            run(handler, live, loader, 9, first=4)
    assert "the save before the last one failed" in caplog.text
    assert steps_of(handler) == [4]


def test_a_handler_that_is_disabled_listens_to_nothing_and_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUPERVISED, str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    live, loader = engines(), Loader()
    with handler_in(tmp_path / "root", mode="off", stop=TOLD) as handler:
        assert handler.load(live, dataloader=loader) is None
        train(live, loader)
        assert handler.dump(live, at(0), dataloader=loader) is False
        assert signal.getsignal(signal.SIGTERM) is before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", [{"stop": "please"}, {"grace": -1}, {"retries": 2.5}])
def test_a_setting_that_cannot_work_is_refused_before_anything_is_trained(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        handler_in(tmp_path, **setting)


def test_a_supervisor_sees_the_root_what_is_loaded_and_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, loader = engines(), Loader()
    with handler_in(tmp_path) as handler:
        handler.load(live, dataloader=loader)
        run(handler, live, loader, 4)
    folder = tmp_path / "supervised"
    folder.mkdir()
    monkeypatch.setenv(SUPERVISED, str(folder))

    def now() -> Beats:
        found = beats.read(next(folder.glob("beat-*")))
        assert found is not None
        return found

    seen: list[Beats] = []
    values = reading.Choosing._values
    monkeypatch.setattr(reading.Choosing, "_values", lambda *args: (seen.append(now()), values(*args))[1])
    with handler_in(tmp_path, retries=7) as handler:
        handler.load(live, dataloader=loader)
        run_id = read(local(Path(handler.root))).run_id
        assert [(each.phase, each.loading, each.run_id) for each in seen] == [("resuming", 1, run_id)]
        assert (now().phase, now().loading, now().resumed, now().step) == ("training", 0, 1, 3)
        run(handler, live, loader, 8, first=4)
        handler.wait()
        assert (now().phase, now().generation, now().step) == ("training", 2, 7)
        assert Path(now().root) == Path(handler.root)
    assert now().phase == "closed"
    assert json.loads((folder / f"retries-{os.getpid()}.json").read_text()) == {"retries": 7}


def test_it_goes_on_from_what_it_is_told_to_and_passes_over_what_kills_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, loader = engines(), Loader()
    with handler_in(tmp_path) as handler:
        handler.load(live, dataloader=loader)
        run(handler, live, loader, 12)
    name = read(local(Path(handler.root))).run_id
    asked._heads.clear()
    for told, value, generation in ((RESUME, f"{name}:1", 1), (SKIP, f"{name}:3", 2)):
        monkeypatch.setenv(told, value)
        with handler_in(tmp_path) as handler:
            info = handler.load(live, dataloader=loader)
            assert info is not None
            assert info.generation == generation
        monkeypatch.delenv(told)
    assert {number: mark.kind for number, mark in read(local(Path(handler.root))).marks.items()} == {3: "kills-loader"}


def test_before_any_save_was_measured_the_end_is_reckoned_by_what_there_is_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_RATE", 1e-3)  # bytes a second: what is small here is a model of terabytes
    live, loader = engines(), Loader()
    with handler_in(tmp_path) as handler:
        handler.load(live, dataloader=loader)
        handler._ending.stop_by("1h", path="limit", at_once=False)
        with pytest.raises(Stopped):
            run(handler, live, loader, 1)
