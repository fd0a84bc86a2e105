"""A supervisor names the generation to go on from, and those that nobody may load any more. B11, B16"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.engine.supervised import RESUME, SKIP
from milepost.errors import CorruptError, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish import quarantine
from milepost.publish.view import read
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, local, snapshot

FULL = StoreError("no space left on device", kind="disk-full", retryable=False, undone=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a run with the generations 1, 2 and 3, of the steps 10, 20 and 30."""
    with Training(tmp_path / "run", keep=Keep(last=9)) as training:
        for step in (10, 20, 30):
            training.save(step)
    return tmp_path / "run"


def start(root: Path) -> Training:
    return Training(root, keep=Keep(last=9))


def run_of(root: Path) -> str:
    return read(local(root)).run_id


# -- MILEPOST_RESUME -----------------------------------------------------------------------------------------------------------


def test_the_one_that_was_asked_for_stands_for_the_latest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, f"another:7, {run_of(root)}:2")
    with start(root) as training:
        assert training.engine.peek().number == 2  # type: ignore[union-attr]
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]
        assert training.is_at(20)
        assert training.save(21).number == 4
    view = read(local(root))
    assert view.head is not None
    assert (view.head.number, view.head.line[-2:]) == (4, (2, 4)) or 2 in view.head.line
    assert 3 not in view.line, "what was stepped back from is left behind, and there"
    assert 3 in view.live


def test_another_word_for_which_counts_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, f"{run_of(root)}:2")
    with start(root) as training:
        assert training.engine.peek(3).number == 3  # type: ignore[union-attr]
        assert training.engine.resume(3).generation == 3  # type: ignore[union-attr]


def test_of_another_run_nothing_is_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, "0123456789abcdef:1")
    with start(root) as training:
        assert training.engine.resume().generation == 3  # type: ignore[union-attr]


def test_it_holds_for_every_engine_of_the_process_until_one_has_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, f"{run_of(root)}:2")
    for _ in range(2):  # a script with two calls of learn(): the first is over, and only looks
        with start(root) as training:
            assert training.engine.resume().generation == 2  # type: ignore[union-attr]
    with start(root) as training:
        training.engine.resume()
        training.save(21)
        assert training.engine.resume().generation == 4  # type: ignore[union-attr]
    with start(root) as training:
        assert training.engine.peek().number == 4  # type: ignore[union-attr]
        assert training.engine.resume().generation == 4  # type: ignore[union-attr]


def test_a_live_state_that_was_asked_for_is_what_an_engine_builds_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, f"{run_of(root)}:2")
    with start(root) as training:
        assert training.engine.adopt().number == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("harm", ["gone", "damaged", "never there"])
def test_if_it_cannot_be_gone_on_from_the_newest_is_and_a_warning_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    monkeypatch.setenv(RESUME, f"{run_of(root)}:{9 if harm == 'never there' else 2}")
    view = read(local(root))
    if harm == "gone":
        local(root).delete("generations/000002.json")
    elif harm == "damaged":
        own = {blob.name for blob in view.live[2].blobs} - {blob.name for blob in view.live[3].blobs}
        for name in own:
            path = root / name
            path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with start(root) as training:
        assert training.engine.resume().generation == 3  # type: ignore[union-attr]
        assert training.is_at(30)
    assert "was asked for, and cannot be gone on from" in caplog.text


@pytest.mark.parametrize("variable", [RESUME, SKIP])
@pytest.mark.parametrize("text", ["5", "run", "run:", ":5", "run:x", "run:0", "run:-1", "run:1,", "run:1;run:2", "run:²", " "])
def test_what_cannot_be_read_is_an_error_before_anything_is_touched(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    before = snapshot(local(root))
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError) as caught:
        start(root).engine.claim()
    assert caught.value.kind == "bad-environment"
    assert variable in str(caught.value)
    assert snapshot(local(root)) == before
    monkeypatch.delenv(variable)
    with start(root) as training:
        assert training.engine.resume() is not None


def test_one_run_goes_on_from_one_generation(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESUME, "run:1,run:2")
    with pytest.raises(UsageError):
        start(root).engine.claim()


# -- MILEPOST_SKIP -------------------------------------------------------------------------------------------------------------


def test_what_kills_its_loader_is_marked_at_the_claim_and_passed_over_for_good(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = run_of(root)
    monkeypatch.setenv(SKIP, f"{run_id}:3,{run_id}:1,other:2")
    with start(root) as training:
        marks = read(local(root)).marks
        assert {number: mark.kind for number, mark in marks.items()} == {3: "kills-loader", 1: "kills-loader"}
        assert all("MILEPOST_SKIP" in mark.reason for mark in marks.values())
        assert training.engine.peek().number == 2  # type: ignore[union-attr]
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]
        assert training.is_at(20)
    assert "loading it has killed the process" in caplog.text
    monkeypatch.delenv(SKIP)
    caplog.clear()
    with start(root) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.generation == 2
        assert any("kills-loader" in each for each in restored.skipped)
        assert training.save(21).number == 4
    with start(root) as training:
        assert training.engine.resume().generation == 4  # type: ignore[union-attr]


def test_a_mark_that_is_there_is_not_written_again_and_one_of_damage_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = run_of(root)
    store = local(root)
    quarantine.mark(store, SystemClock(), run_id=run_id, term=1, number=3, kind="damaged", reason="it was")
    monkeypatch.setenv(SKIP, f"{run_id}:3")
    with start(root):
        first = read(store).marks[3]
        assert first.kind == "kills-loader"
    with start(root):
        assert read(store).marks[3] == first


def test_a_number_that_is_not_there_is_no_mark_on_one_to_come(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SKIP, f"{run_of(root)}:4")
    with start(root) as training:
        training.engine.resume()
        assert training.save(31).number == 4
    assert read(local(root)).marks == {}
    assert "names generation 4, which is not there" in caplog.text


def test_a_disk_that_takes_no_mark_keeps_nobody_from_passing_it_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP, f"{run_of(root)}:3")
    store = FaultStore(local(root))
    store.fail("replace", "quarantine/*", error=FULL, times=None)
    with Training(store, keep=Keep(last=9)) as training:
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]
    assert read(local(root)).marks == {}


def test_where_all_of_them_kill_their_loader_it_does_not_start_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = run_of(root)
    monkeypatch.setenv(SKIP, ",".join(f"{run_id}:{number}" for number in (1, 2, 3)))
    with start(root) as training, pytest.raises(CorruptError) as caught:
        training.engine.resume()
    assert caught.value.exit_code == 14


def test_to_skip_counts_more_than_to_go_on_from_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RESUME, f"{run_of(root)}:3")
    monkeypatch.setenv(SKIP, f"{run_of(root)}:3")
    with caplog.at_level(logging.WARNING), start(root) as training:
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]
    assert "was asked for" in caplog.text
