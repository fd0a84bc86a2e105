"""`milepost doctor fs`: what is missing is found, said with a hint, and told by the exit code; nothing is left behind. A13"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from milepost.cli import doctor
from milepost.cli.main import main
from milepost.store.posix import Posix
from tests.places.odd_places import NEITHER, NO_LINKS, Changed, as_nobody, mount_read_only, open_to_all, refuse, with_own_mounts

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

MOUNT = "36 25 {device} / / {options} - {kind} {source} {more}\n"


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(path: Path) -> dict[str, Any]:
    result = milepost("doctor", "fs", path, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def on(kind: str, more: str = "rw", options: str = "rw", source: str = "server:/export") -> dict[str, Callable[..., object]]:
    """Return a table of mounts with one file system that holds everything."""
    return {"mounts": lambda _: MOUNT.format(device="0:0", options=options, kind=kind, source=source, more=more)}


@pytest.fixture
def posix(monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Give the doctor a medium; as it comes it is a slow, sound disk."""
    changed = Changed(**on("ext4", source="/dev/sda1"), fsync=slowly(Posix.fsync))
    monkeypatch.setattr(doctor, "Posix", lambda: changed)
    return changed


def slowly(_: object) -> Callable[..., object]:
    """Let an fsync take as long as that of a real disk, on whatever the tests run: no clock is waited for, work is done."""

    def fsync(descriptor: int) -> None:
        os.fsync(descriptor)
        for _ in range(2000):
            os.getppid()

    return fsync


def test_a_sound_disk_keeps_all_promises(tmp_path: Path, posix: Changed) -> None:
    result = milepost("doctor", "fs", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "ext4 at / (/dev/sda1), a disk of this machine" in result.stdout
    assert "- an acknowledged save survives a kill: yes; a power cut: yes; the loss of this machine: no" in result.stdout
    assert "- a save is there whole or not at all: yes (by hard link)" in result.stdout
    assert "- a second writer on this machine is kept out by a lock" in result.stdout
    for word in ("missing", "hint", "note"):
        assert f"{word}:" not in result.stdout
    found = document(tmp_path)
    assert (found["message_type"], found["lacks"], found["notes"]) == ("doctor_fs", [], [])
    assert found["survives"] == {"kill": "yes", "power-cut": "yes", "machine-loss": "no"}
    assert {check["outcome"] for check in found["checks"]} == {"yes"}
    assert found["fsync_us"] > 0
    assert found["free_bytes"] > 0


def test_the_real_one_runs_here_and_leaves_nothing(tmp_path: Path) -> None:
    result = milepost("doctor", "fs", tmp_path)
    assert result.exit_code == 0, result.output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_to_be_made_is_tried_where_it_will_be_and_not_made(tmp_path: Path) -> None:
    assert document(tmp_path / "new")["path"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


LACKS: dict[str, tuple[dict[str, Callable[..., object]], set[str]]] = {
    "neither links nor such renames": (NEITHER, {"atomic_create"}),
    "no fsync": ({"fsync": refuse(errno.EIO)}, {"fsync_file"}),
    "no fsync of directories on a disk": ({"sync_directory": refuse(errno.EINVAL)}, {"fsync_directory"}),
    "a directory that fails to sync": ({"sync_directory": refuse(errno.EIO)}, {"fsync_directory"}),
    "no locks": ({"flock": refuse(errno.ENOLCK)}, {"locks"}),
    "locks that keep nobody out": ({"flock": lambda *_: None}, {"locks"}),
    "no rename": ({"replace": refuse(errno.EPERM)}, {"atomic_replace"}),
    "a rename that writes nothing": ({"replace": lambda *_: None}, {"atomic_replace"}),
    "a full disk": ({"write": refuse(errno.ENOSPC)}, {"write", "atomic_create", "atomic_replace", "fsync_file"}),
    "links that replace": ({**NEITHER, "link": lambda a, b: (Path(b).unlink(missing_ok=True), os.link(a, b))}, {"atomic_create"}),
    "renames that replace": ({**NO_LINKS, "rename_new": os.replace}, {"atomic_create"}),
    "bytes that come back wrong": ({"read_into": lambda d, into, at: os.preadv(d, into, at) and 0}, {"write", "atomic_replace"}),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_said_with_a_hint_and_by_the_exit_code(tmp_path: Path, posix: Changed, lack: str) -> None:
    instead, missing = LACKS[lack]
    posix.instead |= instead
    result = milepost("doctor", "fs", tmp_path)
    assert result.exit_code == 1
    found = document(tmp_path)
    assert {each["name"] for each in found["lacks"]} >= missing
    assert result.stdout.count("missing: ") == result.stdout.count("hint: ") == len(found["lacks"])
    assert list(tmp_path.iterdir()) == []


SPARED: dict[str, dict[str, Callable[..., object]]] = {
    "no hard links": NO_LINKS,
    "no rename that replaces nothing": {"rename_new": refuse(errno.EINVAL)},
    "no exclusive create": {"open_new": lambda path, flags, mode: os.open(path, flags & ~os.O_EXCL, mode)},
    "no append": {"open_append": lambda path, *_: os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)},
    "one case": {"exists": lambda path: os.path.lexists(path) or os.path.lexists(path.replace("CASE", "case"))},
}


@pytest.mark.parametrize("lack", SPARED)
def test_what_milepost_does_without_is_said_and_no_failure(tmp_path: Path, posix: Changed, lack: str) -> None:
    posix.instead |= SPARED[lack]
    assert milepost("doctor", "fs", tmp_path).exit_code == 0
    assert [check["outcome"] for check in document(tmp_path)["checks"]].count("no") == 1


def test_without_fsync_of_directories_a_network_file_system_keeps_its_names(tmp_path: Path, posix: Changed) -> None:
    posix.instead |= {"sync_directory": refuse(errno.EINVAL), **on("nfs4")}
    found = document(tmp_path)
    assert found["lacks"] == []
    assert found["survives"] == {"kill": "yes", "power-cut": "yes", "machine-loss": "yes"}


@pytest.mark.parametrize(
    ("mount", "survives", "apart", "note"),
    [
        (on("tmpfs"), "kill", "this machine", "in memory"),
        (on("ext4", "rw,nobarrier"), "kill", "this machine", "does not wait for the disk"),
        (on("overlay", "rw,upperdir=/nowhere/up"), "power-cut", "this machine", "mount a volume"),
        (on("overlay", "rw,volatile,upperdir=/nowhere/up"), "kill", "this machine", "does not wait for the disk"),
        (on("fuse.s3fs"), "kill", "this machine", "the program behind the mount"),
        (on("fuse.glusterfs"), "machine-loss", "everywhere", "its server"),
        (on("nfs4", "rw,vers=4.2,local_lock=none"), "machine-loss", "everywhere", "its server"),
        (on("nfs", "rw,vers=3,nolock,local_lock=all"), "machine-loss", "this machine", "its server"),
        (on("nfs", "rw,vers=3,local_lock=flock"), "machine-loss", "this machine", "its server"),
        (on("nfs4", "rw,nocto"), "machine-loss", "everywhere", "nocto"),
        (on("cifs", "rw,nobrl"), "machine-loss", "this machine", "its server"),
        (on("lustre", "rw,localflock"), "machine-loss", "this machine", "its server"),
        (on("lustre", "rw,flock"), "machine-loss", "everywhere", "its server"),
        (on("strangefs"), "power-cut", "this machine", "does not know"),
    ],
)
def test_the_kind_of_file_system_and_its_options_say_how_far_a_save_lives(
    tmp_path: Path, posix: Changed, mount: dict[str, Callable[..., object]], survives: str, apart: str, note: str
) -> None:
    posix.instead |= mount
    found = document(tmp_path)
    worst = ["kill", "power-cut", "machine-loss"]
    assert found["survives"] == {each: "yes" if worst.index(each) <= worst.index(survives) else "no" for each in worst}
    assert found["writers_kept_apart"] == apart
    assert any(note in each for each in found["notes"])
    assert found["lacks"] == []


def test_an_fsync_that_cannot_have_written_anything_is_doubted(tmp_path: Path, posix: Changed) -> None:
    posix.instead["fsync"] = lambda descriptor: None
    found = document(tmp_path)
    assert found["survives"]["power-cut"] == "in doubt"
    assert any("writes nothing" in note for note in found["notes"])
    posix.instead |= on("tmpfs")
    assert not any("writes nothing" in note for note in document(tmp_path)["notes"])


@pytest.mark.parametrize(("stamp_s", "word"), [(0, "behind"), (5_000_000_000, "ahead of")])
def test_a_server_whose_clock_is_hours_off_is_noted_and_no_failure(
    tmp_path: Path, posix: Changed, stamp_s: int, word: str
) -> None:
    def stamped(descriptor: int) -> None:
        os.utime(f"/proc/self/fd/{descriptor}", (stamp_s, stamp_s))
        os.close(descriptor)

    posix.instead["close"] = stamped
    found = document(tmp_path)
    assert found["lacks"] == []
    assert [note for note in found["notes"] if word in note]


def test_a_path_without_room_for_what_lies_below_a_root_is_told(tmp_path: Path) -> None:
    deep = str(tmp_path)
    while len(deep) + 101 < os.pathconf(tmp_path, "PC_PATH_MAX") - 90:
        deep += "/" + "d" * 100
    deep += "/" + "d" * (os.pathconf(tmp_path, "PC_PATH_MAX") - 91 - len(deep))  # wherever tests lie, as long
    os.makedirs(deep)
    assert [each["name"] for each in document(Path(deep))["lacks"]] == ["long_names", "long_paths"]


def test_a_place_that_is_mounted_read_only_is_reported_as_that(tmp_path: Path) -> None:
    def look() -> None:
        mount_read_only(tmp_path)
        result = milepost("doctor", "fs", tmp_path)
        assert result.exit_code == 1
        assert "can be read (ls, show, verify, load), but not trained: Read-only file system" in result.stdout
        found = document(tmp_path)
        assert [each["name"] for each in found["lacks"]] == ["writable"]
        assert set(found["survives"].values()) == {"no"}

    with_own_mounts(look)


def test_so_is_one_of_another_user() -> None:
    def look(place: Path) -> None:
        result = milepost("doctor", "fs", place)
        assert (result.exit_code, "not trained: Permission denied" in result.stdout) == (1, True)

    with open_to_all() as place:
        as_nobody(lambda: look(place))


@pytest.mark.parametrize(("path", "code"), [("gone/run", 10), ("file", 2), ("file/run", 2)])
def test_what_is_no_place_for_a_root_is_a_usage_error_or_not_found(tmp_path: Path, path: str, code: int) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    result = milepost("doctor", "fs", tmp_path / path)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("hint:") == 1


@pytest.mark.parametrize("call", ["open_new", "link", "fsync", "flock", "exists", "rename_new", "open_append"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_whatever_interrupts_it_nothing_is_left_behind(
    tmp_path: Path, posix: Changed, call: str, error: type[BaseException]
) -> None:
    def interrupt(*_: object) -> object:
        raise error

    posix.instead[call] = interrupt
    milepost("doctor", "fs", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_of_mounts_cannot_steer_the_terminal(tmp_path: Path, posix: Changed) -> None:
    posix.instead |= on("ext4", "rw,x=\x1b[2J", source="/dev/\\033[2J\\012forged")
    result = milepost("doctor", "fs", tmp_path)
    assert "\x1b" not in result.stdout
    assert not any(line.startswith("forged") for line in result.stdout.splitlines())
