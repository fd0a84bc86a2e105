"""The memory of a service that is not to run again is given back, and nothing that was only there is lost. C4, C14"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.service import unloading
from milepost.service.endpoint import read_endpoint, write_endpoint
from milepost.service.settings import ServiceSettings
from milepost.service.unloading import Unloaded, unload
from milepost.store.local import LocalStore
from tests.service.server.conftest import Hall

NEVER_S = 3600.0


def unloaded(hall: Hall) -> Unloaded:
    return unload(str(hall.root), SystemClock(), memory_base=str(hall.shm))


def in_memory_only(hall: Hall) -> Path:
    """Leave v1 on disk and v3 in memory only, and v2, of a lost branch, too; return what stands in the way of the disk."""
    (hall.root / "service").mkdir(parents=True, exist_ok=True)
    with hall.life():
        hall.trainer().commit("one", 1, {"weights": b"1" * 100}, durable=True)
    versions = hall.root / "service" / "versions"
    kept = versions.rename(versions.with_name("kept"))
    versions.write_text("a file, where a directory is to be")
    versions.rename(versions.with_name("obstacle"))
    kept.rename(versions)
    with hall.life(ServiceSettings(memory_bytes=1 << 20, memory_keep_versions=9, retry_s=NEVER_S)):
        versions.rename(kept)
        versions.with_name("obstacle").rename(versions)
        trainer = hall.trainer("2", epoch=2, step=1)
        done = trainer.commit("two", 2, {"weights": b"2" * 200})
        trainer.commit("three", 2, {"weights": b"3" * 300}, parent=done.weights.parent)
    return versions


def test_what_is_in_memory_only_is_on_disk_before_memory_is_given_back(hall: Hall) -> None:
    versions = in_memory_only(hall)
    versions.unlink()
    versions.with_name("kept").rename(versions)
    done = unloaded(hall)
    assert [str(each.at) for each in done.spilled] == ["v3"]  # not v2: training has left it
    assert done.freed_bytes >= 500
    assert [*hall.shm.iterdir()] == []
    assert unloaded(hall) == Unloaded(done.directory, 0)
    with hall.life() as server:
        assert server.live is not None
        assert server.live == server.durable
        reader = hall.sampler()
        assert reader.download(reader.fetch().take.weights) == b"3" * 300


def test_where_the_disk_refuses_all_stays_in_memory(hall: Hall) -> None:
    versions = in_memory_only(hall)
    versions.unlink()
    versions.with_name("kept").rename(versions)
    obstacles = [versions / place for place in hall.places_in_memory if not (versions / place).exists()]
    for each in obstacles:
        each.write_text("a file, where a directory is to be")
    before = sorted(path.name for path in hall.shm.rglob("*"))
    with pytest.raises(StoreError) as caught:
        unloaded(hall)
    assert caught.value.hint == "v3 is in memory only, and stays there, as all does: mend the disk, then again"
    assert sorted(path.name for path in hall.shm.rglob("*")) == before
    for each in obstacles:
        each.unlink()
    with hall.life() as server:
        assert (str(server.live and server.live.at), server.live and server.live.size_bytes) == ("v3", 300)


def test_one_that_falls_after_it_has_written_to_disk_has_lost_nothing(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = in_memory_only(hall)
    versions.unlink()
    versions.with_name("kept").rename(versions)

    def falls(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(unloading, "Stored", falls)
    with pytest.raises(KeyboardInterrupt):
        unloaded(hall)
    monkeypatch.undo()
    assert unloaded(hall).spilled == ()  # it is there, and known
    with hall.life() as server:
        assert [str(each and each.at) for each in (server.live, server.durable)] == ["v3", "v3"]


def test_while_a_service_has_the_root_nothing_is_changed(hall: Hall) -> None:
    with hall.life():
        hall.trainer().commit("one", 1, {"weights": b"1" * 100}, durable=True)
        with pytest.raises(ConflictError) as caught:
            unloaded(hall)
        assert caught.value.kind == "held"
        assert f"milepost status {hall.root}" in caught.value.hint
        assert hall.sampler().fetch().take.weights.at.number == 1
        assert len(hall.places_in_memory) == 1


def test_where_the_service_runs_on_another_machine_it_says_so(hall: Hall, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        unloaded(hall)
    with hall.life():
        pass
    unloaded(hall)
    alive = dataclasses.replace(read_endpoint(hall.root), has_ended=False, boot_id="another")
    write_endpoint(LocalStore(hall.root / "service", SystemClock()), alive)
    with pytest.raises(ConflictError) as caught:
        unloaded(hall)
    assert caught.value.kind == "elsewhere"
