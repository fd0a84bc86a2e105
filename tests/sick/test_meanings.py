"""What each error of the system is told as, whichever call it comes from. C14"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.errors import MilepostError, NotFoundError, StoreError
from milepost.store.base import Store
from milepost.store.local import _CondemnedError
from milepost.store.posix import CHANGES, store_error
from milepost.testing.faults import FileOperation
from milepost.testing.sick import READS, SickPosix, failing
from tests.engine.training import local

MEANINGS = {
    errno.ENOSPC: ("disk-full", 16),
    errno.EDQUOT: ("quota", 16),
    errno.EFBIG: ("file-too-big", 1),
    errno.EACCES: ("permission", 12),
    errno.EPERM: ("permission", 12),
    errno.EROFS: ("read-only", 12),
    errno.EIO: ("io", 1),
    errno.ENXIO: ("io", 1),
    errno.ENODEV: ("io", 1),
    errno.EREMOTEIO: ("io", 1),
    errno.EUCLEAN: ("io", 1),
    errno.ENOTCONN: ("io", 1),
    errno.ESTALE: ("stale", 1),
    errno.ETIMEDOUT: ("timeout", 1),
    errno.ENOENT: ("vanished", 1),
    errno.ENOTDIR: ("not-a-directory", 1),
    errno.EXDEV: ("cross-device", 1),
    errno.ENAMETOOLONG: ("name-too-long", 1),
    errno.EMFILE: ("too-many-files", 1),
    errno.ENFILE: ("too-many-files", 1),
    errno.EINTR: ("interrupted", 1),
    errno.EAGAIN: ("interrupted", 1),
    errno.EBADF: ("os-error", 1),
}


@pytest.mark.parametrize("number", MEANINGS, ids=errno.errorcode.get)
def test_each_error_of_the_system_has_a_kind_an_exit_code_and_a_next_step(number: int) -> None:
    error = store_error(OSError(number, "as the system says it"), "write", "/runs/a", name="LATEST")
    assert (error.kind, error.exit_code) == MEANINGS[number]
    assert error.message == "could not write: as the system says it"
    assert error.hint
    assert error.facts["path"] == "/runs/a"


def blob(store: Store) -> None:
    with store.open_blob("blobs/000002-t1-00000000000000bb.safetensors") as sink:
        sink.write(b"bytes")
        sink.commit()


WRITES: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create("generations/000002.json", b"new"),
    "replace": lambda store: store.replace("LATEST", b"new"),
    "replace_if": lambda store: store.replace_if("LATEST", b"there", b"new"),
    "append": lambda store: store.append("events/0001.jsonl", b"line\n"),
    "blob": blob,
    "move": lambda store: store.move("generations/000001.json", "reset/generations/000001.json"),
    "delete": lambda store: store.delete("LATEST"),
    "sync": lambda store: store.sync("generations/"),
}
READING: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read("LATEST"),
    "read_into": lambda store: store.read_into("LATEST", 0, memoryview(bytearray(3))),
    "list": lambda store: store.list("generations/"),
    "free_bytes": lambda store: store.free_bytes(),
}


def prepared(root: Path) -> Path:
    store = local(root)
    store.create("LATEST", b"there")
    store.create("generations/000001.json", b"there")
    return root


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", WRITES | READING)
def test_a_store_tells_the_same_kind_from_whichever_of_its_calls_it_comes(place: Path, operation: str, number: int) -> None:
    act, calls = (WRITES | READING)[operation], CHANGES if operation in WRITES else READS
    for at in range(100):
        posix = SickPosix(failing(number), at, calls=calls, lasting=True)
        root = prepared(place / f"{at}")
        told: MilepostError | None = None
        try:
            act(local(root, posix))
        except MilepostError as error:
            told = error
        if not posix.struck:
            break
        # A disk that fails is neither damage nor absence. What only tidies up may fail unnoticed.
        assert told is None or (type(told), told.kind) in (
            (StoreError, MEANINGS[number][0]),
            (_CondemnedError, MEANINGS[number][0]),
        )
        assert told is not None or at
    assert 0 < at < 100


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", READING)
def test_a_read_that_fails_once_is_asked_once_more(place: Path, operation: str, number: int) -> None:
    """On a network file system a file that was replaced while it was open is stale: opened again, it is the new one."""
    expected = READING[operation](local(prepared(place)))
    for at in range(10):
        posix = SickPosix(failing(number), at, calls=frozenset({"open_read", "size", "read_into", "scan"}))
        answer = READING[operation](local(place, posix))
        assert answer == expected or operation == "free_bytes"
        if not posix.struck:
            break
    assert at < 10


def test_a_directory_that_cannot_be_asked_for_is_not_one_that_needs_no_sync(place: Path) -> None:
    store = local(prepared(place), SickPosix(failing(errno.EIO), calls=frozenset({"is_directory"}), lasting=True))
    with pytest.raises(StoreError) as caught:
        store.sync("generations/")
    assert caught.value.kind == "io"


def test_a_name_that_cannot_be_looked_at_is_not_left_out_of_a_listing(place: Path) -> None:
    prepared(place)

    class Sick:
        """Be an entry of a directory whose inode cannot be read."""

        name = "0007.json"

        def is_dir(self, **_: object) -> bool:
            return False

        def is_symlink(self) -> bool:
            return False

        def stat(self, **_: object) -> object:
            raise OSError(errno.EIO, "Input/output error")

    class Scan(list[Sick]):
        def __enter__(self) -> Scan:
            return self

        def __exit__(self, *_: object) -> None:
            """Close nothing."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.store.posix.os.scandir", lambda _path: Scan([Sick()]))
        with pytest.raises(StoreError) as caught:
            local(place).list("terms/")
    assert caught.value.kind == "io"


def test_a_record_that_a_sick_disk_took_by_half_and_could_not_cut_off_is_cut_off_by_the_next_append(place: Path) -> None:
    name = "events/0001.jsonl"
    posix = SickPosix(failing(errno.EIO), calls=frozenset({"truncate"}), lasting=True)
    store = local(place, posix)
    store.append(name, b"first\n")

    class Half(SickPosix):
        def write(self, descriptor: int, data: memoryview) -> int:
            return super().write(descriptor, data[:3])

    store._posix = Half(failing(errno.EIO), calls=frozenset({"truncate"}), lasting=True)
    with pytest.raises(StoreError):
        store.append(name, b"second\n")
    assert local(place).read(name) == b"first\nsec"
    store._posix = SickPosix()
    store.append(name, b"third\n")
    assert local(place).read(name) == b"first\nthird\n"


@pytest.mark.parametrize("gone", ["blobs", "generations", "events"])
def test_a_directory_that_was_removed_underneath_is_made_anew(place: Path, gone: str) -> None:
    def remove(_operation: FileOperation, apply: Callable[[], object]) -> object:
        for path in sorted((place / gone).rglob("*")):
            path.unlink()
        (place / gone).rmdir()
        return apply()

    posix = SickPosix(remove, at=10**9)
    store = local(prepared(place), posix)
    blob(store)
    store.append("events/0001.jsonl", b"line\n")
    for path in (place / gone).iterdir():
        path.unlink()
    (place / gone).rmdir()
    store.create("generations/000009.json", b"new")
    store.append("events/0001.jsonl", b"line\n")
    assert store.read("generations/000009.json") == b"new"


def test_a_root_that_was_removed_underneath_is_not_made_anew_by_its_writer(place: Path) -> None:
    root = place / "run"
    store = local(prepared(root))
    store.replace("LATEST", b"newer")
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()
    with pytest.raises(StoreError) as caught:
        store.create("generations/000009.json", b"new")
    assert caught.value.kind == "vanished"
    assert not root.exists()
    with pytest.raises(NotFoundError):
        store.read("LATEST")
