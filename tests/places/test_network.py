"""A network file system loses answers, lists what is gone, forgets open files and tells of failed writes at close. A13, B5, B6

There is no file server here: each of these is what a client was seen to answer, put in the place of the real answer.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from milepost.engine import oneshot, relief
from milepost.errors import MilepostError, StoreError
from milepost.publish.view import read
from milepost.store.posix import Posix
from tests.engine.training import Training, bits, local, state_at, without_git
from tests.places.odd_places import Changed, files_in, refuse, refuse_once
from tests.places.test_lacks import a_whole_life

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 8192)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory where there is one: hundreds of runs are written, and nothing here depends on the medium."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="milepost-places-", dir=memory))
    yield made
    shutil.rmtree(made)


def stands_at(root: Path, *steps: int) -> None:
    """Check that one of ``steps`` is what a new start resumes from, exactly; and that it can save."""
    with Training(root) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.step in steps
        assert training.is_at(restored.step)
        training.save(99)
    assert oneshot.verify(root).ok
    assert bits(oneshot.load(root)) == bits(state_at(99))


# --- lost answers


class LostAnswers(Posix):
    """Do the nth call of a name, lose its answer, and ask again: the second time it fails, for it is done already."""

    def __init__(self, name: str, nth: int) -> None:
        self.name, self.nth = name, nth
        self.asked: Counter[str] = Counter()
        self.lost = 0

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer = function(*args, **kwargs)
        self.asked[name] += 1
        if name != self.name or self.asked[name] - 1 != self.nth:
            return answer
        self.lost += 1
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", ["link", "replace", "unlink", "mkdir", "rename_new"])
def test_a_lost_answer_anywhere_costs_at_most_the_save_that_it_was_asked_for(place: Path, name: str) -> None:
    for nth in range(60):
        root, posix = place / str(nth), LostAnswers(name, nth)
        acknowledged = 0
        try:
            with Training(local(root, posix)) as training:
                training.engine.resume()
                for step in (1, 2, 3):
                    training.save(step)
                    acknowledged = step
        except StoreError as error:
            assert name == "replace", error  # noqa: PT017  the one whose repetition cannot be told from a file that was swept
        if not posix.lost:
            return
        assert acknowledged == 3 or name == "replace"
        stands_at(root, *range(acknowledged, 4)) if acknowledged else None
    pytest.fail("three saves of more than sixty such calls")


def test_without_an_exclusive_create_nothing_is_lost(tmp_path: Path) -> None:
    # NFS before version 3 had none. Every name that is created so has a nonce in it, and no second writer ever asks for it.
    a_whole_life(tmp_path / "run", Changed(open_new=lambda path, flags, mode: os.open(path, flags & ~os.O_EXCL, mode)))


# --- files that are gone and not gone


def test_files_that_a_server_keeps_for_those_who_have_them_open_are_nobodys(tmp_path: Path) -> None:
    numbers = iter(range(10_000))

    def silly_rename(path: str) -> None:
        os.rename(path, os.path.join(os.path.dirname(path), f".nfs{next(numbers):024x}"))

    root = tmp_path / "run"
    posix = Changed(unlink=silly_rename)
    with Training(local(root, posix)) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
    kept = {name for name in files_in(root) if "/.nfs" in name}
    assert {name.partition("/")[0] for name in kept} >= {"blobs", "generations"}
    report = oneshot.verify(root)
    assert report.ok
    assert report.problems == ()
    stands_at(root, 4)
    assert kept <= files_in(root).keys()  # a sweep leaves them to the server
    aside = oneshot.reset(root)
    assert bits(oneshot.load(root / aside.to)) == bits(state_at(99))
    assert kept <= files_in(root).keys()


class Lagging(Posix):
    """List what was there when this directory was last listed before ``lag`` was set, whatever happened since."""

    def __init__(self) -> None:
        self.seen: dict[str, object] = {}
        self.lag: tuple[str, ...] = ()

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name != "scan":
            return function(*args, **kwargs)
        path = os.path.basename(str(args[0]).rstrip("/"))
        if path in self.lag:
            return self.seen[path]  # type: ignore[return-value]
        self.seen[path] = answer = function(*args, **kwargs)
        return answer


def a_writer_elsewhere(root: Path, *steps: int) -> None:
    with Training(root) as training:
        training.engine.resume()
        for step in steps:
            training.save(step)


def test_a_start_that_is_listed_no_newest_generation_refuses_to_settle_on_an_older_one(tmp_path: Path) -> None:
    # Settled on what was listed a minute ago, it would make void what the writer on the other machine has acknowledged.
    a_writer_elsewhere(tmp_path, 1, 2)
    posix = Lagging()
    read(local(tmp_path, posix))
    a_writer_elsewhere(tmp_path, 3)
    posix.lag = ("generations",)
    for action in (lambda: Training(local(tmp_path, posix)).engine.claim(), lambda: oneshot.load(local(tmp_path, posix))):
        with pytest.raises(StoreError) as caught:
            action()
        assert (caught.value.kind, caught.value.retryable) == ("listing-lags", True)
        assert "nocto" in caught.value.hint
    posix.lag = ()
    stands_at(tmp_path, 3)


def test_a_start_that_is_not_listed_its_own_fence_settles_nothing(tmp_path: Path) -> None:
    a_writer_elsewhere(tmp_path, 1)
    posix = Lagging()
    read(local(tmp_path, posix))
    a_writer_elsewhere(tmp_path, 2)
    posix.lag = ("terms",)
    with pytest.raises(StoreError) as caught:
        Training(local(tmp_path, posix)).engine.claim()
    assert caught.value.kind == "listing-lags"
    assert "0003.from.json" not in files_in(tmp_path / "terms")  # nothing is settled
    posix.lag = ()
    stands_at(tmp_path, 2)


def test_a_listing_that_still_shows_what_was_retired_is_read_without_it(tmp_path: Path) -> None:
    a_writer_elsewhere(tmp_path, 1, 2)
    posix = Lagging()
    local(tmp_path, posix).list("")
    (tmp_path / "generations" / "000001.json").unlink()
    posix.lag = ("generations", "blobs")
    assert bits(oneshot.load(local(tmp_path, posix))) == bits(state_at(2))
    with Training(local(tmp_path, posix)) as training:
        assert training.engine.resume() is not None
        assert training.is_at(2)


def test_sizes_that_lag_behind_are_not_taken_for_damage(tmp_path: Path) -> None:
    a_writer_elsewhere(tmp_path, 1, 2)

    def small(path: str) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
        if not os.path.isdir(path):
            return (), ()
        with os.scandir(path) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
        return tuple(name for name, inner in found if inner), tuple((name, 0) for name, inner in found if not inner)

    store = local(tmp_path, Changed(scan=small))
    assert bits(oneshot.load(store)) == bits(state_at(2))
    with Training(store) as training:
        assert training.engine.resume() is not None
        assert training.is_at(2)


# --- stale handles


@pytest.mark.parametrize("call", ["open_read", "read_into", "size", "scan"])
def test_a_stale_handle_is_opened_anew(tmp_path: Path, call: str) -> None:
    a_writer_elsewhere(tmp_path, 1, 2)

    class StaleAtFirst(Posix):
        def __init__(self) -> None:
            self.failed: set[object] = set()

        def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            file = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else args[0]
            if name == call and file not in self.failed:
                self.failed.add(file)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return function(*args, **kwargs)

    posix = StaleAtFirst()
    assert bits(oneshot.load(local(tmp_path, posix))) == bits(state_at(2))
    with Training(local(tmp_path, StaleAtFirst())) as training:
        assert training.engine.resume() is not None
        training.save(3)
    assert posix.failed
    stands_at(tmp_path, 3)


@pytest.mark.parametrize("call", ["read_into", "scan"])
def test_one_that_stays_stale_is_an_error_that_may_pass_and_never_damage(tmp_path: Path, call: str) -> None:
    a_writer_elsewhere(tmp_path, 1, 2)
    before = files_in(tmp_path)
    posix = Changed(**{call: refuse(errno.ESTALE)})
    for action in (lambda: oneshot.load(local(tmp_path, posix)), lambda: Training(local(tmp_path, posix)).engine.resume()):
        with pytest.raises(StoreError) as caught:
            action()
        assert (caught.value.kind, caught.value.retryable) == ("stale", True)
    assert {name for name in files_in(tmp_path) if name.startswith("quarantine/")} == set()
    assert {name: data for name, data in before.items() if name.startswith(("generations/", "blobs/"))}.items() <= (
        files_in(tmp_path).items()
    )
    stands_at(tmp_path, 2)


# --- failed writes that are told at close


def errno_of(error: BaseException) -> int | None:
    """Return what the system said at the beginning of it all."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error.errno if isinstance(error, OSError) else None


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_fails_at_close_is_no_write(place: Path, number: int) -> None:
    # The bytes of the file are thrown away, as the server has them: who names it all the same has named a hole.
    for nth in range(80):
        root, closed = place / str(nth), []

        def close(descriptor: int, nth: int = nth, closed: list[str] = closed) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            os.close(descriptor)
            if path.endswith((".tmp", ".part")):
                closed.append(path)
                if len(closed) - 1 == nth:
                    os.truncate(path, 0)
                    raise OSError(number, os.strerror(number))

        acknowledged = 0
        try:
            with Training(local(root, Changed(close=close))) as training:
                training.engine.resume()
                for step in (1, 2):
                    training.save(step)
                    acknowledged = step
        except MilepostError as error:
            assert errno_of(error) == number  # noqa: PT017
        if nth >= len(closed):
            assert acknowledged == 2
            return
        if acknowledged:
            stands_at(root, *range(acknowledged, 3))
        assert oneshot.verify(root).ok if (root / "milepost.json").exists() else True
    pytest.fail("two saves of more than eighty files")


def test_a_hint_whose_bytes_the_server_refused_does_not_replace_the_one_before(tmp_path: Path) -> None:
    store = local(tmp_path)
    store.replace("LATEST", b"old")
    failing = Changed(close=lambda descriptor: (os.close(descriptor), refuse(errno.ENOSPC)()))
    with pytest.raises(StoreError) as caught:
        local(tmp_path, failing).replace("LATEST", b"new", durable=False)
    assert caught.value.kind == "disk-full"
    assert files_in(tmp_path) == {"LATEST": b"old"}


def test_it_is_written_once_more_under_another_name(tmp_path: Path) -> None:
    once, named = refuse_once(errno.EIO, lambda: None), []

    def close(descriptor: int) -> None:
        named.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        os.close(descriptor)
        once()

    assert local(tmp_path, Changed(close=close)).create("a", b"x")
    assert len(set(named)) == 2
    assert files_in(tmp_path) == {"a": b"x"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_lock_file_that_cannot_be_closed_well_keeps_nobody_from_ending_or_beginning(tmp_path: Path, number: int) -> None:
    def close(descriptor: int) -> None:
        is_lock = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".lock")
        os.close(descriptor)
        if is_lock:
            raise OSError(number, os.strerror(number))

    for step in (1, 2):
        with Training(local(tmp_path, Changed(close=close))) as training:
            training.engine.resume()
            training.save(step)
    stands_at(tmp_path, 2)


# --- clocks


@pytest.mark.parametrize("stamp_s", [0, 5_000_000_000])
def test_nothing_is_decided_by_the_times_a_server_stamps_on_files(tmp_path: Path, stamp_s: int) -> None:
    class Stamping(Posix):
        """A server whose clock stands in 1970, or far ahead."""

        def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if name in ("fsync", "close"):
                os.utime(f"/proc/self/fd/{args[0]}", (stamp_s, stamp_s))
            return function(*args, **kwargs)

    a_whole_life(tmp_path / "run", Stamping())
    stamps = {int((tmp_path / "run" / name).stat().st_mtime) for name in files_in(tmp_path / "run")}
    assert stamp_s in stamps


def test_a_reader_beside_a_writer_whose_files_go_stale_never_fails_and_sees_no_mix(tmp_path: Path) -> None:
    # Retired files are stale at once for whoever has them open, and not there a moment later.
    a_writer_elsewhere(tmp_path, 1)
    done = threading.Event()

    def write() -> None:
        try:
            a_writer_elsewhere(tmp_path, *range(2, 30))
        finally:
            done.set()

    class StaleWhenUnlinked(Posix):
        def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if name == "read_into" and os.readlink(f"/proc/self/fd/{args[0]}").endswith(" (deleted)"):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return function(*args, **kwargs)

    thread = threading.Thread(target=write, name="milepost-test-writer")
    thread.start()
    loads = 0
    while not done.is_set() or not loads:
        tree = oneshot.load(local(tmp_path, StaleWhenUnlinked()))
        assert isinstance(tree, dict)
        assert bits(tree) == bits(state_at(int(tree["counters"]["step"])))
        loads += 1
    thread.join()
    stands_at(tmp_path, 29)
