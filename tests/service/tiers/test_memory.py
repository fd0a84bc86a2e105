"""Memory: mapped without a copy, never used again, room set aside before it is promised. C3, C4"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from milepost.errors import ConflictError, NotFoundError, StoreError
from milepost.service.index import blob_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob
from milepost.testing.faults import count_operations, fail_at
from milepost.testing.sick import SickPosix, short
from tests.service.tiers.versions import bring, contents, index_of, read_all

BLOB = Blob("place", "weights")


@pytest.fixture
def tier(tmp_path: Path) -> MemoryTier:
    tier = MemoryTier(str(tmp_path / "memory"))
    tier.make()
    return tier


def test_what_is_mapped_stays_what_it_is_also_once_it_is_erased_or_brought_anew(tier: MemoryTier) -> None:
    index = bring(tier, 1)
    blob = Blob(index.place, blob_of("part0"))
    view = tier.map(blob)
    assert view.readonly
    tier.new_blob(blob, 2500)
    tier.write(blob, 0, b"\xff" * 2500)
    second = tier.map(blob)
    tier.erase(index.place)
    assert view == contents(1)["part0"]
    assert second == b"\xff" * 2500
    with pytest.raises(NotFoundError):
        tier.map(blob)
    assert len(tier.map(Blob(bring(tier, 2).place, blob_of("part1")))) == 0


def test_room_is_set_aside_before_anybody_may_map_it(tier: MemoryTier) -> None:
    tier.new_blob(BLOB, 1 << 20)
    assert os.stat(tier.path_of(BLOB)).st_blocks * 512 >= 1 << 20


def test_more_than_there_is_memory_is_refused_and_leaves_nothing(tier: MemoryTier) -> None:
    with pytest.raises(StoreError) as caught:
        tier.new_blob(BLOB, 1 << 50)
    assert caught.value.kind in ("disk-full", "file-too-big")
    assert not os.path.exists(tier.path_of(BLOB))


def test_writes_that_are_cut_short_are_gone_on_with(tmp_path: Path) -> None:
    tier = MemoryTier(str(tmp_path / "memory"), SickPosix(short(), lasting=True, calls=frozenset({"write", "write_at"})))
    tier.make()
    index = bring(tier, 1)
    assert read_all(tier, index) == contents(1)
    assert tier.index(index.place) == index


def test_whatever_fails_is_told_and_the_version_is_not_there(tmp_path: Path) -> None:
    def act(tier: MemoryTier) -> None:
        tier.make()
        bring(tier, 1)

    operations = count_operations(lambda posix: act(MemoryTier(str(tmp_path / "counted"), posix)))
    for at in range(len(operations)):
        place = tmp_path / str(at)
        tier = MemoryTier(str(place), fail_at(at, errno.EIO))
        with suppress(StoreError):
            act(tier)
        again = MemoryTier(str(place))
        again.make()
        index = index_of(1)
        found = again.index(index.place)
        assert found is None or not again.verify(found)
        again.erase(index.place)
        bring(again, 1)
        assert not again.verify(index)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    open_to_all, link, file = tmp_path / "open", tmp_path / "link", tmp_path / "file"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(tmp_path)
    file.write_bytes(b"")
    for path in (open_to_all, link, file):
        with pytest.raises(ConflictError) as caught:
            MemoryTier(str(path)).make()
        assert caught.value.kind == "not-ours"
    tier = MemoryTier(str(tmp_path / "ours"))
    tier.make()
    tier.make()
    assert os.stat(tier.directory).st_mode & 0o777 == 0o700


def test_no_link_is_followed_and_no_pipe_is_waited_for(tier: MemoryTier, tmp_path: Path) -> None:
    index = bring(tier, 1)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    os.symlink(secret, tier.path_of(Blob(index.place, "link")))
    os.mkfifo(tier.path_of(Blob(index.place, "pipe")))
    for name in ("link", "pipe"):
        with pytest.raises((NotFoundError, StoreError)):
            tier.map(Blob(index.place, name))
    with pytest.raises((NotFoundError, StoreError)):
        tier.write(Blob(index.place, "link"), 0, b"x")
    assert secret.read_bytes() == b"secret"
    tier.erase(index.place)
