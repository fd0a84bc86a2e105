from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from milepost.clock import Clock, FakeClock
from milepost.errors import UsageError
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.resolve import open_store


def test_paths_and_file_urls_are_local_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for where, path in [
        ("runs/one", tmp_path / "runs" / "one"),
        (Path("runs/one"), tmp_path / "runs" / "one"),
        (f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        (f"FILE://localhost{tmp_path}/x", tmp_path / "x"),
        ("~/run", tmp_path / "home" / "run"),
        ("c:run", tmp_path / "c:run"),
    ]:
        store = open_store(where, FakeClock())
        assert isinstance(store, LocalStore)
        assert store.url == str(path)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_shared_by_name_within_the_process() -> None:
    one, two = open_store("memory://shared-by-name", FakeClock()), open_store("memory://shared-by-name", FakeClock())
    assert isinstance(one, MemoryStore)
    one.create("a", b"x")
    assert two.read("a") == b"x"
    assert open_store("memory://", FakeClock()).list("") == []


def test_a_store_is_itself() -> None:
    store = MemoryStore()
    assert open_store(store, FakeClock()) is store


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://bucket/run", "az://container/run"])
def test_an_object_store_says_when_it_comes_and_what_to_use_today(url: str) -> None:
    with pytest.raises(UsageError, match="later release") as caught:
        open_store(url, FakeClock())
    assert (caught.value.kind, caught.value.facts["url"]) == ("no-object-stores", url)
    assert "directory" in caught.value.hint


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        open_store("ftp://host/run", FakeClock())
    assert caught.value.kind == "unknown-scheme"
    assert "file, memory" in caught.value.hint


@pytest.mark.parametrize("where", ["", "file://", "file://host/run", "file:///run?x=1", "file://relative"])
def test_a_name_that_means_nothing_is_refused(where: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(where, FakeClock())
    assert caught.value.kind == "bad-url"


def open_third_party(url: str, clock: Clock) -> Store:
    store = MemoryStore()
    store.url = url
    return store


def test_a_registered_scheme_is_opened_by_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint(name="s3", value=f"{__name__}:open_third_party", group="milepost.stores")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: open_third_party)
    monkeypatch.setattr(metadata, "entry_points", lambda **asked: [point] if asked.get("name", "s3") == "s3" else [])
    assert open_store("s3://bucket/run", FakeClock()).url == "s3://bucket/run"
