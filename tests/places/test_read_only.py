"""Who may only read can look, verify and load, and writes nothing; who would train gets one clear error. B7"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from milepost.engine import oneshot
from milepost.errors import SaveFailed, StoreError
from milepost.publish import pins
from milepost.testing.faults import FaultyPosix
from tests.engine.training import Training, bits, local, state_at, without_git
from tests.places.odd_places import Changed, as_nobody, files_in, mount_read_only, open_to_all, refuse, with_own_mounts

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    without_git(monkeypatch)
    with open_to_all() as place:
        with Training(place / "run") as training:
            for step in (1, 2, 3):
                training.save(step)
        yield place / "run"


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def readers_work(root: Path) -> None:
    for command in (("ls", root), ("show", root), ("show", root, "latest~1"), ("verify", root), ("gc", root, "--keep-last", 1)):
        for form in ((), ("--json",)):
            result = milepost(*command, *form)
            assert (result.exit_code, result.stderr) == (0, ""), (command, result.stderr)
    assert milepost("diff", root, "latest~1", "latest").exit_code == 1  # they differ
    scrubbed = milepost("scrub", root)
    assert (scrubbed.exit_code, "Traceback" in scrubbed.output) in ((0, False), (12, False))
    assert bits(oneshot.load(root)) == bits(state_at(3))
    assert bits(oneshot.load(root, which=2)) == bits(state_at(2))
    assert oneshot.verify(root).ok


def writers_are_told(root: Path, kind: str) -> None:
    with pytest.raises(StoreError) as caught, Training(root):
        pytest.fail("claimed")
    assert (caught.value.kind, caught.value.exit_code) == (kind, 12)
    assert caught.value.hint
    for action in (lambda: oneshot.save(root, {"a": 1}), lambda: oneshot.rollback(root, 2), lambda: oneshot.reset(root)):
        with pytest.raises(StoreError) as refused:
            action()
        assert refused.value.kind == kind
    with pytest.raises(StoreError) as unpinned:
        pins.pin(local(root), 2, by="test")
    assert unpinned.value.kind == kind
    result = milepost("rollback", root, "2")
    assert result.exit_code == 12
    assert len(result.stderr.splitlines()) <= 3


def test_a_root_that_is_mounted_read_only(root: Path) -> None:
    before = files_in(root)

    def use() -> None:
        mount_read_only(root)
        readers_work(root)
        writers_are_told(root, "read-only")

    with_own_mounts(use)
    assert files_in(root) == before


def test_a_root_of_another_user(root: Path) -> None:
    before = files_in(root)

    def use() -> None:
        readers_work(root)
        writers_are_told(root, "permission")

    as_nobody(use)
    assert files_in(root) == before


def test_a_new_root_where_nobody_may_write(root: Path) -> None:
    def make(kind: str) -> None:
        with pytest.raises(StoreError) as caught, Training(root.parent / "new" / "run"):
            pytest.fail("claimed")
        assert (caught.value.kind, caught.value.exit_code) == (kind, 12)

    as_nobody(lambda: make("permission"))
    with_own_mounts(lambda: (mount_read_only(root.parent), make("read-only")))
    assert not (root.parent / "new").exists()


@pytest.mark.parametrize("closed", ["", "generations", "terms"])
def test_a_root_that_may_not_even_be_read_is_not_taken_for_an_empty_one(root: Path, closed: str) -> None:
    (root / closed).chmod(0o700)

    def use() -> None:
        with pytest.raises(StoreError) as caught:
            oneshot.load(root)
        assert caught.value.kind == "permission"
        for command in ("ls", "show", "verify"):
            assert milepost(command, root).exit_code == 12
        with pytest.raises(StoreError) as refused, Training(root):
            pytest.fail("claimed")
        assert refused.value.kind == "permission"

    as_nobody(use)


def test_a_root_below_a_directory_that_may_be_entered_but_not_read(root: Path) -> None:
    root.parent.chmod(0o711)
    as_nobody(lambda: readers_work(root))


def test_one_to_whom_a_root_was_given_trains_there_although_the_directory_above_is_closed(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, 65534, 65534)
    root.parent.chmod(0o711)

    def train() -> None:
        with Training(root) as training:
            training.engine.resume()
            training.save(4)

    as_nobody(train)
    assert bits(oneshot.load(root)) == bits(state_at(4))


def test_readers_ask_for_no_change_but_that_names_be_durable(root: Path) -> None:
    asked: list[str] = []

    class Listening(FaultyPosix):
        def perform(self, name, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            try:
                return super().perform(name, function, *args, **kwargs)
            finally:
                asked.extend(operation.name for operation in self.operations)

    oneshot.load(local(root, Listening()))
    oneshot.verify(local(root, Listening()))
    assert set(asked) <= {"sync_directory"}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_where_a_reader_may_not_sync_it_reads_all_the_same(root: Path, number: int) -> None:
    assert bits(oneshot.load(local(root, Changed(sync_directory=refuse(number))))) == bits(state_at(3))


def test_where_the_disk_fails_at_a_sync_the_reader_is_not_handed_what_may_be_taken_back(root: Path) -> None:
    # Rule 20: a caller must not stand on a name that a power cut removes.
    with pytest.raises(StoreError) as caught:
        oneshot.load(local(root, Changed(sync_directory=refuse(errno.EIO))))
    assert caught.value.kind == "io"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_writer_on_a_disk_that_turned_read_only_is_told_and_acknowledges_nothing(root: Path, number: int) -> None:
    posix = Changed()
    with Training(local(root, posix)) as training:
        training.engine.resume()
        posix.instead = {"sync_directory": refuse(number), "open_new": refuse(number)}
        with pytest.raises(SaveFailed) as caught:
            training.save(4)
        assert os.strerror(number) in str(caught.value)
    assert bits(oneshot.load(root)) == bits(state_at(3))
