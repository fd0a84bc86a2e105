"""File systems that lack something, work as far as they can; and say what is missing before anything is written. A13, B6"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engine import oneshot, relief
from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.publish import pins
from milepost.store.posix import Posix
from tests.engine.training import Training, bits, local, state_at, without_git
from tests.places.odd_places import (
    NEITHER,
    NO_LINKS,
    Changed,
    files_in,
    mount_memory,
    mount_overlay,
    open_to_all,
    refuse,
    with_own_mounts,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 8192)


def a_whole_life(root: Path, posix: Posix | None = None) -> None:
    """Train, end without closing, resume, roll back, pin, set aside, begin anew: all of it works on this medium."""
    first = Training(local(root, posix))
    first.save(1)
    first.save(2)
    first.engine._held.close()  # the lock goes as it does with a killed process; nothing else is done
    with Training(local(root, posix)) as training:
        assert training.engine.resume() is not None
        assert training.is_at(2)
        training.save(3)
        training.save(4)
    store = local(root, posix)
    pins.pin(store, 3, by="test")
    assert oneshot.rollback(store, 3).step == 3
    assert bits(oneshot.load(store)) == bits(state_at(3))
    assert oneshot.verify(store).ok
    aside = oneshot.reset(store)
    assert bits(oneshot.load(local(root / aside.to, posix))) == bits(state_at(3))
    with Training(store) as anew:
        assert anew.engine.resume() is None
        anew.save(1)
    assert oneshot.verify(store).ok
    assert [name for name in files_in(root) if name.endswith((".tmp", ".part"))] == []


# --- other file systems


def test_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        pytest.skip("not run: there is no /dev/shm")
    made = Path(tempfile.mkdtemp(prefix="milepost-places-", dir=memory))
    try:
        a_whole_life(made / "run")
        assert local(made).capabilities.survives == "kill"
        assert "until this machine stops" in caplog.text
        assert b'"survives":"kill"' in max((made / "run" / "events").iterdir()).read_bytes()
    finally:
        shutil.rmtree(made)


def on_an_overlay(action: Callable[[Path], object], *options: str) -> None:
    with open_to_all() as place:

        def use() -> None:
            mount_memory(place)
            for name in ("lower", "upper", "work", "merged"):
                (place / name).mkdir()
            with Training(place / "lower" / "run") as training:
                training.save(1)
            mount_overlay(place / "merged", place / "lower", place / "upper", place / "work", *options)
            action(place)

        with_own_mounts(use)


def test_the_layers_of_a_container() -> None:
    on_an_overlay(lambda place: a_whole_life(place / "merged" / "new"))


def test_a_run_in_a_lower_layer_goes_on_in_the_upper_one() -> None:
    # An image with a run baked in: every file that is changed is copied up first, under another inode.
    def go_on(place: Path) -> None:
        lower = files_in(place / "lower")
        with Training(place / "merged" / "run") as training:
            assert training.engine.resume() is not None
            assert training.is_at(1)
            training.save(2)
        assert bits(oneshot.load(place / "merged" / "run")) == bits(state_at(2))
        assert files_in(place / "lower") == lower

    on_an_overlay(go_on)


def test_an_overlay_promises_what_its_upper_layer_does() -> None:
    # The overlay above is over a memory file system; one that is volatile passes no fsync on.
    def look(place: Path) -> None:
        assert local(place / "merged").capabilities.survives == "kill"

    on_an_overlay(look)
    on_an_overlay(look, "volatile")


# --- no hard links; no rename that replaces nothing; neither


def test_without_hard_links_all_of_it_works(tmp_path: Path) -> None:
    a_whole_life(tmp_path / "run", Changed(**NO_LINKS))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_without_a_rename_that_replaces_nothing_all_of_it_works(tmp_path: Path, number: int) -> None:
    a_whole_life(tmp_path / "run", Changed(rename_new=refuse(number)))


def test_with_neither_no_run_is_begun_and_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught, Training(local(tmp_path / "run", Changed(**NEITHER))):
        pytest.fail("claimed")
    assert caught.value.kind == "no-atomic-create"
    assert "hard links" in caught.value.hint
    assert [name for name in files_in(tmp_path / "run") if name != "writer.lock"] == []


def test_a_run_that_is_moved_to_such_a_place_can_be_read_and_is_not_harmed_by_who_would_train_it(tmp_path: Path) -> None:
    with Training(tmp_path / "run") as training:
        training.save(1)
    before = files_in(tmp_path / "run")
    store = local(tmp_path / "run", Changed(**NEITHER))
    with pytest.raises(StoreError) as caught, Training(store):
        pytest.fail("claimed")
    assert caught.value.kind == "no-atomic-create"
    assert bits(oneshot.load(store)) == bits(state_at(1))
    assert {name: data for name, data in files_in(tmp_path / "run").items() if name != "writer.lock"} == {
        name: data for name, data in before.items() if name != "writer.lock"
    }


# --- no fsync of directories


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP])
def test_where_directories_cannot_be_synced_all_of_it_works(tmp_path: Path, number: int) -> None:
    a_whole_life(tmp_path / "run", Changed(sync_directory=refuse(number)))


def test_a_directory_that_fails_to_sync_for_another_reason_is_not_taken_for_one_that_need_not_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught, Training(local(tmp_path / "run", Changed(sync_directory=refuse(errno.EIO)))):
        pytest.fail("claimed")
    assert caught.value.kind == "io"


# --- no locks


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest) -> Posix:
    return Changed(flock=refuse(request.param))


def test_without_locks_training_begins_only_if_the_user_answers_for_it(tmp_path: Path, no_locks: Posix) -> None:
    with pytest.raises(StoreError) as caught, Training(local(tmp_path / "run", no_locks)):
        pytest.fail("claimed")
    assert caught.value.kind == "no-locks"
    assert "--take-over" in caught.value.hint
    with Training(local(tmp_path / "run", no_locks), take_over=True) as training:
        training.save(1)
    with Training(local(tmp_path / "run", no_locks), take_over=True) as training:
        assert training.engine.resume() is not None
        assert training.is_at(1)


def test_without_locks_the_terms_still_let_only_one_of_two_save(tmp_path: Path, no_locks: Posix) -> None:
    first = Training(local(tmp_path / "run", no_locks), take_over=True)
    first.save(1)
    with Training(local(tmp_path / "run", no_locks), take_over=True) as second:
        second.engine.resume()
        second.save(2)
        with pytest.raises(ConflictError):
            first.save(7)
        second.save(3)
    first.engine.close()
    assert bits(oneshot.load(tmp_path / "run")) == bits(state_at(3))
    assert oneshot.verify(tmp_path / "run").ok


def test_a_place_that_loses_its_locks_while_a_run_holds_one_lets_it_save_and_end(tmp_path: Path) -> None:
    posix = Changed()
    with Training(local(tmp_path / "run", posix)) as training:
        training.save(1)
        posix.instead = {"flock": refuse(errno.ENOLCK)}
        training.save(2)
    posix.instead = {}
    with Training(local(tmp_path / "run", posix)) as again:
        assert again.engine.resume() is not None
        assert again.is_at(2)


def test_compare_and_set_without_locks_is_refused_rather_than_risked(tmp_path: Path, no_locks: Posix) -> None:
    with pytest.raises(StoreError):
        local(tmp_path, no_locks).replace_if("lease.json", None, b"x")
    with pytest.raises(NotFoundError):
        local(tmp_path).read("lease.json")
