"""A kill before every single system call of every kind of write. B6"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.errors import NotFoundError
from milepost.store.base import LARGE_BYTES, Store
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from milepost.testing.faults import run_and_kill

OLD, NEW = b"old" * 1000, b"new" * 2000


def local(root: Path, posix: Posix | None = None) -> LocalStore:
    return LocalStore(root, SystemClock(), posix=posix)


def read(store: Store, name: str) -> bytes | None:
    try:
        return store.read(name)
    except NotFoundError:
        return None


def litter(store: Store) -> list[str]:
    return [entry.name for entry in store.list("") if entry.name.endswith((".tmp", ".part"))]


def write_blob(store: Store) -> None:
    with store.open_blob("blobs/1") as blob:
        blob.write(NEW[:1000])
        blob.write(NEW[1000:])
        blob.commit()


def write_large_blob(store: Store) -> None:
    with store.open_blob("blobs/1", size_bytes=2 * LARGE_BYTES) as blob:
        blob.write(NEW)
        blob.write(bytes(LARGE_BYTES) + NEW)
        blob.commit()


CASES: dict[str, tuple[Callable[[Store], object], str, bytes | None]] = {
    "create": (lambda store: store.create("generations/1", NEW, label="t7"), "generations/1", None),
    "replace": (lambda store: store.replace("LATEST", NEW, label="t7"), "LATEST", OLD),
    "replace_if": (lambda store: store.replace_if("LATEST", OLD, NEW, label="t7"), "LATEST", OLD),
    "blob": (write_blob, "blobs/1", None),
    "large blob": (write_large_blob, "blobs/1", None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_kill_anywhere_leaves_old_bytes_or_new_ones_and_only_marked_litter(
    tmp_path: Path, case: tuple[Callable[[Store], object], str, bytes | None]
) -> None:
    action, name, old = case
    seen = set()
    for number in itertools.count():
        root = tmp_path / str(number)
        if old is not None:
            local(root).create(name, old)
        killed = run_and_kill(lambda posix, root=root: action(local(root, posix)), number)  # type: ignore[misc]
        found = read(local(root), name)
        if case == CASES["large blob"] and found is not None:
            assert found == NEW + bytes(LARGE_BYTES) + NEW
            found = NEW
        assert found in (old, NEW)
        assert len(litter(local(root))) <= 1
        assert all(left.startswith("blobs/") for left in litter(local(root)))
        seen.add(found)
        if not killed:
            assert found == NEW
            assert litter(local(root)) == []
            break
    assert seen == {old, NEW}


def test_a_kill_anywhere_in_a_move_leaves_the_name_in_one_place_and_the_move_can_be_repeated(tmp_path: Path) -> None:
    for number in itertools.count():
        root = tmp_path / str(number)
        local(root).create("terms/1", OLD)
        killed = run_and_kill(lambda posix, root=root: local(root, posix).move("terms/1", "reset/1/terms/1"), number)  # type: ignore[misc]
        assert sorted([str(read(local(root), "terms/1")), str(read(local(root), "reset/1/terms/1"))]) == ["None", str(OLD)]
        local(root).move("terms/1", "reset/1/terms/1")
        assert read(local(root), "reset/1/terms/1") == OLD
        if not killed:
            break


def test_a_kill_anywhere_while_claiming_or_giving_up_the_lock_leaves_it_free(tmp_path: Path) -> None:
    for number in itertools.count():

        def hold(posix: Posix) -> None:
            with local(tmp_path / "run", posix).guard(wait_s=0.0, take_over=False):
                pass

        killed = run_and_kill(hold, number)
        with local(tmp_path / "run").guard(wait_s=0.0, take_over=False):
            pass
        if not killed:
            break
