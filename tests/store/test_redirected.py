"""MILEPOST_ROOT puts every run root of a program into one directory, apart from each other, and touches no other. B20"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost
from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.resolve import directory_of, original_of


@pytest.fixture
def into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MILEPOST_ROOT", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


def save(root: object, value: float = 1.0) -> None:
    with milepost.CheckpointEngine(root, state={"policy": {"w": np.full(2, value)}}) as engine:  # type: ignore[arg-type]
        engine.resume("never")
        engine.save(1)


def test_an_engine_saves_there_and_nowhere_else(into: Path) -> None:
    save("runs/a")
    assert [original_of(path.name) for path in into.iterdir()] == ["runs/a"]
    assert os.listdir() == []


def test_each_root_has_a_place_of_its_own_whatever_names_it(into: Path, tmp_path: Path) -> None:
    for root in ("runs/a", "runs/b", str(tmp_path / "far/c"), LocalStore(tmp_path / "d", SystemClock()), MemoryStore("e")):
        save(root)
    assert len(list(into.iterdir())) == 5
    assert not (tmp_path / "far").exists()
    assert not (tmp_path / "d").exists()


def test_one_root_has_one_place_however_it_is_spelled_and_wherever_the_program_runs(
    into: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save("runs/a")
    save(os.path.abspath("runs/../runs/a"))
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    save("runs/a")
    assert len(list(into.iterdir())) == 1


@pytest.mark.parametrize("url", ["s3://bucket/trial", "file:///tmp/trial"])
def test_a_url_is_no_directory_and_none_is_made_of_it(into: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MILEPOST_ROOT", url)
    with pytest.raises(UsageError, match="MILEPOST_ROOT=/scratch/trial") as caught:
        save("runs/a")
    assert caught.value.kind == "bad-root"
    assert os.listdir() == []
    assert not into.exists()


def test_what_was_moved_once_is_not_moved_again(into: Path) -> None:
    milepost.save("runs/a", {"policy": {"w": 1.0}}, step=3)
    milepost.save("runs/a", {"policy": {"w": 2.0}}, step=4)
    # Opens the root, and hands what it has opened on.
    from milepost.engine.oneshot import rollback

    rollback("runs/a", 1)
    assert len(list(into.iterdir())) == 1


def test_what_was_saved_there_is_loaded_from_there_and_other_runs_from_where_they_are(
    into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILEPOST_ROOT")
    milepost.save("runs/pretrained", {"policy": {"w": 1.0}})
    monkeypatch.setenv("MILEPOST_ROOT", str(into))
    assert milepost.load("runs/pretrained") == {"policy": {"w": 1.0}}
    milepost.save("runs/mine", {"policy": {"w": 2.0}})
    assert milepost.load("runs/mine") == {"policy": {"w": 2.0}}
    assert os.listdir("runs") == ["pretrained"]


def test_without_the_variable_a_root_is_where_it_says(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILEPOST_ROOT")
    save("runs/a")
    assert not into.exists()


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_two_names_have_two_directories_and_any_name_is_one_that_can_be_made(one: str, other: str) -> None:
    one, other = (text.encode("utf-8", "replace").decode() for text in (one, other))
    name = directory_of(one)
    assert len(name.encode()) <= 255
    assert name not in (".", "..")
    assert "/" not in name
    assert (name == directory_of(other)) == (one == other)
    assert original_of(name) == one or len(name) > 100
