"""What a local store promises beyond the contract: order of system calls, clean failure, odd file systems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError, NotFoundError, StoreError, UsageError
from milepost.store.base import LARGE_BYTES, Entry, Store
from milepost.store.blob_bytes import BLOCK_BYTES
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from milepost.testing import StoreTests
from milepost.testing.faults import FaultyPosix, FileOperation, count_operations
from tests.places.odd_places import Changed, refuse

P = ParamSpec("P")
T = TypeVar("T")


class TestLocalStore(StoreTests):
    def make_store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "runs" / "one", SystemClock())

    def raw_read(self, store: Store, name: str) -> bytes | None:
        path = Path(store.url) / name
        return path.read_bytes() if path.is_file() else None

    def raw_write(self, store: Store, name: str, data: bytes) -> None:
        path = Path(store.url) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def local(root: Path, posix: Posix | None = None) -> LocalStore:
    return LocalStore(root, FakeClock(), posix=posix)


# --- places and names


def test_a_relative_root_stays_where_it_was_when_the_script_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = local(Path("run"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.create("a", b"x")
    assert (tmp_path / "run" / "a").read_bytes() == b"x"
    assert store.url == str(tmp_path / "run")


def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = local(tmp_path / "typo")
    assert store.list("") == []
    store.sync("")
    store.delete("a")
    with pytest.raises(NotFoundError):
        store.read("a")
    assert store.free_bytes() is not None
    assert list(tmp_path.iterdir()) == []


def test_a_list_leaves_out_what_cannot_be_a_name_and_does_not_walk_through_links(tmp_path: Path) -> None:
    root, aside = tmp_path / "run", tmp_path / "aside"
    (root / "d").mkdir(parents=True)
    aside.mkdir()
    (aside / "big").write_bytes(b"12345")
    (root / "d" / "a").write_bytes(b"x")
    (root / "d" / "é").write_bytes(b"foreign")
    (root / "d" / "back\\slash").write_bytes(b"foreign")
    (root / "d" / "moved").symlink_to(aside / "big")
    (root / "d" / "dangling").symlink_to(aside / "nothing")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "d" / "pipe")
    assert local(root).list("") == [Entry("d/a", 1)]


# --- the order of system calls


def steps(operations: list[FileOperation], root: Path) -> list[str]:
    """Say each step with the path it was on; descriptors are not told apart."""
    told = []
    for operation in operations:
        first = operation.arguments[0]
        told.append(f"{operation.name} {os.path.relpath(first, root)}" if isinstance(first, str) else operation.name)
    return told


def test_create_makes_parents_then_bytes_then_the_name_durable(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "one"
    operations = count_operations(lambda posix: local(root, posix).create("generations/000042.json", b"{}", label="t7"))
    temporary = "blobs/000042.json-t7-0000000000000001.tmp"
    assert steps(operations, root) == [
        "mkdir ..",
        "sync_directory ../..",
        "mkdir .",
        "sync_directory ..",
        "mkdir generations",
        "sync_directory .",
        "mkdir blobs",
        "sync_directory .",
        f"open_new {temporary}",
        "write",
        "fsync",
        f"link {temporary}",
        f"unlink {temporary}",
        "sync_directory generations",
    ]


def test_replace_and_commit_make_bytes_then_the_name_durable(tmp_path: Path) -> None:
    local(tmp_path).create("blobs/0", b"")
    replaced = count_operations(lambda posix: local(tmp_path, posix).replace("LATEST", b"{}"))
    known = [f"sync_directory {directory}" for directory in ("..", ".")]
    assert [step.split(" blobs/LATEST")[0] for step in steps(replaced, tmp_path)] == [
        *known,
        "open_new",
        "write",
        "fsync",
        "replace",
        "sync_directory .",
    ]

    def commit(posix: Posix) -> None:
        with local(tmp_path, posix).open_blob("blobs/1") as blob:
            blob.write(b"x")
            blob.commit()

    assert steps(count_operations(commit), tmp_path) == [
        *known,
        "open_new blobs/1.part",
        "write",
        "fsync",
        "replace blobs/1.part",
        "sync_directory blobs",
    ]


def test_a_hint_is_written_without_waiting_for_the_disk(tmp_path: Path) -> None:
    local(tmp_path).create("blobs/0", b"")
    posix = FaultyPosix()
    store = local(tmp_path, posix)
    store.sync("")
    del posix.operations[:]
    store.replace("LATEST", b"{}", durable=False)
    assert [operation.name for operation in posix.operations] == ["sync_directory", "open_new", "write", "replace"]


def test_a_directory_which_a_killed_process_made_and_did_not_sync_is_synced_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "run" / "terms").mkdir(parents=True)
    operations = count_operations(lambda posix: local(tmp_path / "run", posix).create("terms/0001.json", b"{}"))
    assert steps(operations, tmp_path / "run")[:2] == ["sync_directory ..", "sync_directory ."]


def test_sync_reaches_every_directory_below_and_the_names_of_those_above(tmp_path: Path) -> None:
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run" / "c").mkdir()
    operations = count_operations(lambda posix: local(tmp_path / "run", posix).sync("a/"))
    assert steps(operations, tmp_path / "run") == [f"sync_directory {d}" for d in ("..", ".", "a", "a/b")]


def test_a_parent_that_may_not_be_read_is_no_obstacle_unless_the_root_had_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()

    def only_below(path: str) -> None:
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, "not yours")

    assert local(tmp_path / "given", Changed(sync_directory=only_below)).create("a", b"x")
    with pytest.raises(StoreError, match="not yours"):
        local(tmp_path / "made", Changed(sync_directory=only_below)).create("a", b"x")


# --- large and small pieces


def test_write_back_is_asked_for_block_by_block_and_leaves_no_gap(tmp_path: Path) -> None:
    ranges: list[tuple[int, int]] = []
    posix = Changed(
        set_direct=refuse(errno.EINVAL), start_write_back=lambda _, offset, size, advice: ranges.append((offset, size))
    )
    with local(tmp_path, posix).open_blob("blobs/1") as blob:
        blob.write(bytes(2 * BLOCK_BYTES + 5))
        for _ in range(20):
            blob.write(bytes(BLOCK_BYTES // 7))
        blob.commit()
    assert [offset for offset, _ in ranges] == [sum(size for _, size in ranges[:i]) for i in range(len(ranges))]
    assert all(BLOCK_BYTES <= size < 2 * BLOCK_BYTES for _, size in ranges)
    assert len(ranges) == 4


def test_thousands_of_small_leaves_are_written_together(tmp_path: Path) -> None:
    posix = FaultyPosix()
    with local(tmp_path, posix).open_blob("blobs/1") as blob:
        for number in range(10_000):
            blob.write(b"%09d\n" % number)
        blob.commit()
    assert (tmp_path / "blobs" / "1").read_bytes().splitlines() == [b"%09d" % number for number in range(10_000)]
    assert [operation.name for operation in posix.operations].count("write") == 1


def test_calls_that_do_less_than_asked_are_repeated(tmp_path: Path) -> None:
    stingy = Changed(
        write=lambda descriptor, data: os.write(descriptor, data[:1000]),
        read_into=lambda descriptor, into, offset: os.preadv(descriptor, [into[0][:7]], offset),
    )
    store, data = local(tmp_path, stingy), os.urandom(2500)
    store.create("a", data)
    with store.open_blob("blobs/1") as blob:
        blob.write(data)
        blob.commit()
    assert store.read("a") == store.read("blobs/1") == data
    into = bytearray(30)
    assert store.read_into("a", 2480, memoryview(into)) == 20
    assert into == data[2480:] + bytes(10)


def test_half_an_appended_record_is_taken_back(tmp_path: Path) -> None:
    local(tmp_path).append("events", b"first\n")
    full = Changed(write=lambda descriptor, data: os.write(descriptor, data[:3]))
    with pytest.raises(StoreError) as caught:
        local(tmp_path, full).append("events", b"second\n")
    assert caught.value.kind == "disk-full"
    assert (tmp_path / "events").read_bytes() == b"first\n"


# --- file systems that lack something


def test_without_hard_links_a_rename_that_replaces_nothing_creates(tmp_path: Path) -> None:
    store = local(tmp_path, Changed(link=refuse(errno.EPERM)))
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert files_in(tmp_path) == {"a": b"1"}


def test_with_neither_a_create_is_refused_rather_than_risked(tmp_path: Path) -> None:
    store = local(tmp_path, Changed(link=refuse(errno.ENOTSUP), rename_new=refuse(errno.EINVAL)))
    with pytest.raises(StoreError) as caught:
        store.create("a", b"1")
    assert caught.value.kind == "no-atomic-create"
    assert files_in(tmp_path) == {}


def test_a_link_that_was_done_although_its_answer_says_taken_is_our_success(tmp_path: Path) -> None:
    def repeated(path: str, to: str) -> None:
        os.link(path, to)
        os.link(path, to)

    store = local(tmp_path, Changed(link=repeated))
    assert store.create("a", b"1")
    assert files_in(tmp_path) == {"a": b"1"}
    assert not store.create("a", b"2")


def test_without_such_a_rename_move_links_and_repeats_what_a_kill_left_half_done(tmp_path: Path) -> None:
    store = local(tmp_path, Changed(rename_new=refuse(errno.ENOSYS)))
    store.create("a", b"1")
    store.create("b", b"2")
    with pytest.raises(ConflictError):
        store.move("a", "b")
    os.link(tmp_path / "a", tmp_path / "c")
    store.move("a", "c")
    store.move("a", "c")
    assert files_in(tmp_path) == {"b": b"2", "c": b"1"}
    with pytest.raises(NotFoundError):
        store.move("a", "d")


def test_a_file_system_without_fsync_of_directories_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def files_only(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert local(tmp_path).create("a", b"1")


# --- failures


@pytest.mark.parametrize(
    ("number", "kind", "retryable", "exit_code"),
    [
        (errno.ENOSPC, "disk-full", False, 16),
        (errno.EDQUOT, "quota", False, 16),
        (errno.EACCES, "permission", False, 12),
        (errno.EPERM, "permission", False, 12),
        (errno.EROFS, "read-only", False, 12),
        (errno.EIO, "io", False, 1),
        (errno.ESTALE, "stale", True, 1),
        (errno.EINTR, "interrupted", True, 1),
        (errno.ENAMETOOLONG, "name-too-long", False, 1),
        (errno.ENOTTY, "os-error", False, 1),
    ],
)
def test_an_error_of_the_system_says_what_it_means(
    tmp_path: Path, number: int, kind: str, retryable: bool, exit_code: int
) -> None:
    with pytest.raises(StoreError) as caught:
        local(tmp_path, Changed(open_new=refuse(number))).create("d/a", b"x")
    error = caught.value
    assert (error.kind, error.retryable, error.exit_code) == (kind, retryable, exit_code)
    assert error.facts == {"name": "d/a", "path": str(tmp_path / "d" / "a")}
    assert os.strerror(number) in str(error)
    assert isinstance(error.__cause__, OSError)


def test_a_directory_removed_under_a_running_store_is_an_error_and_not_made_anew(tmp_path: Path) -> None:
    store = local(tmp_path / "run")
    store.create("a", b"1")
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(StoreError) as caught:
        store.create("b", b"2")
    assert caught.value.kind == "vanished"
    assert not (tmp_path / "run").exists()


def test_a_failed_sync_condemns_the_temporary_file_and_the_bytes_go_into_another(tmp_path: Path) -> None:
    synced: list[str] = []

    def fail_first(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    assert local(tmp_path, Changed(fsync=fail_first)).create("a", b"x")
    assert len(set(synced)) == 2
    assert files_in(tmp_path) == {"a": b"x"}


def test_a_second_failed_sync_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    store = local(tmp_path, Changed(fsync=refuse(errno.EIO)))
    for write in (lambda: store.create("a", b"x"), lambda: store.replace("a", b"x")):
        with pytest.raises(StoreError) as caught:
            write()
        assert caught.value.kind == "io"
    assert files_in(tmp_path) == {}


def test_a_failed_sync_condemns_the_blob(tmp_path: Path) -> None:
    store = local(tmp_path, Changed(fsync=refuse(errno.EIO)))
    blob = store.open_blob("blobs/1")
    blob.write(b"x")
    with pytest.raises(StoreError) as caught:
        blob.commit()
    assert (caught.value.kind, caught.value.retryable) == ("io", False)
    with pytest.raises(UsageError):
        blob.commit()
    assert files_in(tmp_path) == {}


def test_a_failed_write_condemns_the_blob(tmp_path: Path) -> None:
    blob = local(tmp_path, Changed(write=refuse(errno.ENOSPC))).open_blob("blobs/1")
    with pytest.raises(StoreError, match="No space left"):
        blob.write(bytes(5_000_000))
    with pytest.raises(UsageError):
        blob.commit()
    assert files_in(tmp_path) == {}


def test_a_blob_whose_name_may_not_be_durable_does_not_stay_under_it(tmp_path: Path) -> None:
    posix = Changed()
    with local(tmp_path, posix).open_blob("blobs/1") as blob:
        posix.instead = {"sync_directory": refuse(errno.EIO)}
        with pytest.raises(StoreError):
            blob.commit()
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("instead", [refuse(errno.ESTALE), refuse(errno.EIO)])
def test_once_the_name_may_be_there_the_outcome_is_unknown_and_not_to_be_retried(
    tmp_path: Path, instead: Callable[..., object]
) -> None:
    local(tmp_path).create("generations/1", b"")
    posix = Changed()
    store = local(tmp_path, posix)
    store.sync("generations/")
    store.sync("blobs/")
    posix.instead = {"sync_directory": instead}
    with pytest.raises(StoreError) as caught:
        store.create("generations/2", b"x")
    assert not caught.value.retryable
    assert files_in(tmp_path)["generations/2"] == b"x"


def write_blob(store: Store) -> None:
    with store.open_blob("blobs/new") as blob:
        blob.write(b"new")
        blob.commit()


def write_large_blob(store: Store) -> None:
    with store.open_blob("blobs/new", size_bytes=LARGE_BYTES + 100) as blob:
        blob.write(bytes(LARGE_BYTES))
        blob.write(b"new")
        blob.commit()


ACTIONS: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create("generations/000002.json", b"new"),
    "replace": lambda store: store.replace("LATEST", b"new"),
    "replace_if": lambda store: store.replace_if("LATEST", b"old", b"new"),
    "blob": write_blob,
    "large blob": write_large_blob,
    "append": lambda store: store.append("events/1", b"new"),
    "move": lambda store: store.move("LATEST", "reset/LATEST"),
    "delete": lambda store: store.delete("LATEST"),
}


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "disk-full"), (errno.EIO, "io")])
@pytest.mark.parametrize("case", ACTIONS)
def test_an_error_at_any_system_call_is_reported_and_leaves_old_or_new_bytes_and_no_litter(
    tmp_path: Path, case: str, number: int, kind: str
) -> None:
    for failing in range(100):
        root = tmp_path / str(failing)
        local(root).replace("LATEST", b"old")
        local(root).append("events/1", b"old")
        posix = FaultyPosix(failing, lambda _: refuse(number)())
        said = None
        try:
            ACTIONS[case](local(root, posix))
        except StoreError as error:
            said = error.kind
        assert said in (kind, None)
        after = files_in(root)
        if failing < len(posix.operations) and posix.operations[failing].name == "unlink":
            # The one call whose failure may leave litter is the one that removes it.
            after = {name: data for name, data in after.items() if not name.endswith(".tmp")}
        assert not [name for name in after if name.endswith((".tmp", ".part"))]
        assert all(data.lstrip(b"\0") in (b"old", b"new", b"oldnew") for name, data in after.items() if name != "cas.lock")
        assert case == "delete" or len(after.keys() & {"LATEST", "reset/LATEST"}) == 1
        if failing >= len(posix.operations):
            assert said is None
            return
    pytest.fail("an action of more than 100 system calls")
