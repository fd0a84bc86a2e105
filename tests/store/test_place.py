"""Which file system a path lies on, read from the table of mounts as the kernel words it, in all its oddities."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.store.place import Place, place_of
from tests.places.odd_places import Changed, refuse


def device_of(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def table(*lines: str) -> Callable[[str], str]:
    return lambda _: "".join(line + "\n" for line in lines)


def look(path: Path | str, *lines: str) -> Place:
    return place_of(str(path), Changed(mounts=table(*lines)))


def test_the_longest_mount_point_above_a_path_holds_it(tmp_path: Path) -> None:
    found = look(
        tmp_path / "run",
        "1 0 0:1 / / rw - ext4 /dev/sda1 rw",
        f"2 1 0:2 / {tmp_path} rw,noatime - xfs /dev/sdb1 rw,nobarrier",
        f"3 1 0:3 / {tmp_path}/r rw - tmpfs tmpfs rw",
        f"4 1 0:4 / {tmp_path}x rw - nfs4 server:/x rw",
    )
    assert found == Place("xfs", str(tmp_path), "/dev/sdb1", ("rw", "noatime", "nobarrier"))
    assert not found.flushes


def test_optional_fields_and_blanks_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    place = tmp_path / "with blank\nand \\ more"
    place.mkdir()
    escaped = str(place).replace("\\", "\\134").replace(" ", "\\040").replace("\n", "\\012")
    found = look(place, f"9 1 0:9 /sub {escaped} rw shared:1 master:2 propagate_from:3 - nfs4 my\\040server:/a rw,addr=1.2.3.4")
    assert (found.mount_point, found.source, found.file_system) == (str(place), "my server:/a", "nfs4")


def test_of_two_on_one_point_the_later_is_on_top(tmp_path: Path) -> None:
    lines = [f"{n} 1 0:9 / {tmp_path} rw - {kind} none rw" for n, kind in ((2, "xfs"), (3, "tmpfs"))]
    assert look(tmp_path, *lines).file_system == "tmpfs"


def test_a_mount_that_hides_a_deeper_one_is_told_by_the_device(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    lines = [
        f"2 1 0:99 / {tmp_path}/a/b rw - nfs server:/hidden rw",
        f"3 1 {device_of(tmp_path)} / {tmp_path}/a rw - ext4 /dev/sda1 rw",
    ]
    assert look(tmp_path / "a" / "b", *lines).file_system == "ext4"


def test_a_file_system_that_shows_another_device_in_its_files_is_found_by_its_point(tmp_path: Path) -> None:
    # btrfs gives each subvolume one of its own.
    assert look(tmp_path, "1 0 0:1 / / rw - ext4 /dev/sda1 rw", f"2 1 0:2 / {tmp_path} rw - btrfs /dev/sdb rw").kind == "disk"


def test_a_path_that_is_yet_to_be_made_lies_where_its_nearest_parent_does(tmp_path: Path) -> None:
    assert look(tmp_path / "a" / "b" / "c", f"2 1 0:2 / {tmp_path} rw - tmpfs none rw").kind == "memory"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    lines = (f"2 1 0:2 / {tmp_path} rw - ext4 none rw", f"3 2 0:3 / {tmp_path}/disk rw - nfs4 server:/x rw")
    assert look(tmp_path / "run" / "new", *lines).kind == "network"


def test_the_upper_layer_says_what_an_overlay_promises_where_it_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "merged").mkdir()
    overlay = f"2 1 0:2 / {tmp_path}/merged rw - overlay overlay rw,lowerdir=/l,upperdir={tmp_path}/upper,workdir=/w"
    found = look(tmp_path / "merged", overlay, f"3 1 0:3 / {tmp_path}/upper rw - tmpfs none rw")
    assert (found.kind, found.survives) == ("overlay", "kill")
    assert look(tmp_path / "merged", overlay).survives == "power-cut"


def test_an_upper_layer_that_is_not_ours_to_see_is_as_if_it_could_not_be_seen(tmp_path: Path) -> None:
    overlay = f"2 1 0:2 / {tmp_path} rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/containers/upper,workdir=/w"
    place = place_of(str(tmp_path), Changed(mounts=table(overlay), is_directory=refuse(errno.EACCES)))
    assert (place.kind, place.upper, place.survives) == ("overlay", None, "power-cut")


@pytest.mark.parametrize(
    "lines", [(), ("",), ("garbage",), ("1 2 3",), ("1 0 0:1 / / rw shared:1 ext4 x rw",), ("1 0 0:1 / / rw -",)]
)
def test_a_table_that_says_nothing_leaves_the_place_unknown(tmp_path: Path, lines: tuple[str, ...]) -> None:
    found = look(tmp_path, *lines)
    assert (found.kind, found.survives, found.locks_reach_other_hosts) == ("unknown", "power-cut", False)


@pytest.mark.parametrize("call", ["mounts", "status"])
def test_a_system_without_such_a_table_leaves_it_unknown_too(tmp_path: Path, call: str) -> None:
    assert place_of(str(tmp_path), Changed(**{call: refuse(errno.ENOENT)})) == Place()


@pytest.mark.parametrize(
    ("options", "read_only"), [("ro - ext4 x rw", True), ("rw - ext4 x ro", True), ("rw - ext4 x rw", False)]
)
def test_it_is_read_only_if_the_mount_or_the_file_system_is(tmp_path: Path, options: str, read_only: bool) -> None:
    assert look(tmp_path, f"1 0 0:1 / / {options}").is_read_only is read_only
