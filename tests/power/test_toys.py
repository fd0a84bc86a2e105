"""Test the tester: small writers, each with a mistake that other crash testers let pass. Each is caught, and the right one not.

The writers save generations into directories that are renamed into place, with a digest, and fall back to the newest one
that verifies: so a lost save shows only to those who ask for what was acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.store.posix import Posix
from milepost.testing.faults import run_in_child
from milepost.testing.power import BlindSpotError, Cut, Recorder, Tally, replay

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Toy:
    """Save into `tmp-1`, and rename that to `gen-1`; each step of it can be left out."""

    def __init__(self, place: Path, posix: Posix, without: str = "") -> None:
        self.place = place
        self.posix = posix
        self.without = without

    def write(self, path: Path, data: bytes) -> None:
        descriptor = self.posix.open_new(str(path))
        self.posix.write(descriptor, memoryview(data))
        if self.without != "file fsync":
            self.posix.fsync(descriptor)
        self.posix.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.posix.sync_directory(str(path))

    def save(self, step: int) -> None:
        made, data = self.place / f"tmp-{step}", b"%d\n" % step * 700
        self.posix.mkdir(str(made))
        self.write(made / "data", data)
        self.write(made / "digest", hashlib.sha256(data).hexdigest().encode())
        if self.without != "fsync of the new directory":
            self.sync_directory(made)
        self.posix.replace(str(made), str(self.place / f"gen-{step}"))
        if self.without != "fsync of the parent":
            self.sync_directory(self.place)


class FlatToy(Toy):
    """Save into `tmp-1`, and rename that file to `gen-1`."""

    def save(self, step: int) -> None:
        made, data = self.place / f"tmp-{step}", b"%d\n" % step * 700
        self.write(made, hashlib.sha256(data).hexdigest().encode() + data)
        self.posix.replace(str(made), str(self.place / f"gen-{step}"))
        self.sync_directory(self.place)


class DescriptorAgain(FlatToy):
    """Close the file, and sync a directory that has got the same descriptor."""

    def write(self, path: Path, data: bytes) -> None:
        descriptor = self.posix.open_new(str(path))
        self.posix.write(descriptor, memoryview(data))
        self.posix.close(descriptor)
        directory = os.open(path.parent, os.O_RDONLY)
        if directory != descriptor:
            os.dup2(directory, descriptor)
            os.close(directory)
        self.posix.fsync(descriptor)
        self.posix.close(descriptor)


class InAChild(FlatToy):
    """Let a forked child write."""

    def save(self, step: int) -> None:
        assert run_in_child(lambda: super(InAChild, self).save(step)) == 0


class InASpawnedChild(FlatToy):
    """Let another program write, which opens the same journal."""

    def save(self, step: int) -> None:
        recorder = self.posix
        assert isinstance(recorder, Recorder)
        code = (
            "from tests.power.test_toys import FlatToy, Recorder, Path\n"
            f"recorder = Recorder({recorder.place!r}, {recorder.journal!r})\n"
            f"FlatToy(Path({str(self.place)!r}), recorder, {self.without!r}).save({step})"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class InPlace(Toy):
    """Overwrite one file, synced each time."""

    def save(self, step: int) -> None:
        path = str(self.place / "gen-0")
        descriptor = self.posix.open_lock(path)
        self.posix.write_at(descriptor, hashlib.sha256(b"%d\n" % step * 700).hexdigest().encode() + b"%d\n" % step * 700, 0)
        self.posix.fsync(descriptor)
        self.posix.close(descriptor)
        self.sync_directory(self.place)


def newest(place: Path) -> int:
    """Return the newest step that verifies, as an engine does that falls back; 0 if none does."""
    found = 0
    for path in place.glob("gen-*"):
        if path.is_dir():
            data, digest = (((path / name).read_bytes() if (path / name).exists() else b"") for name in ("data", "digest"))
        else:
            whole = path.read_bytes()
            digest, data = whole[:64], whole[64:]
        if data and hashlib.sha256(data).hexdigest().encode() == digest:
            found = max(found, int(data.split()[0]))
    return found


def check(cut: Cut, place: Path) -> None:
    assert newest(place) >= max([0, *(facts["step"] for facts in cut.noted("acknowledged"))])


def caught(toy: Callable[[Path, Recorder], Toy], steps: int = 3) -> Tally:
    def act(place: Path, recorder: Recorder) -> None:
        for step in range(1, steps + 1):
            toy(place, recorder).save(step)
            recorder.note("acknowledged", step=step)

    return replay(act, check)


@pytest.mark.parametrize("kind", [Toy, FlatToy, InAChild])
def test_a_writer_without_a_mistake_loses_nothing(kind: type[Toy]) -> None:
    tally = caught(kind)
    assert tally.lost == 0, tally.failures[0]
    assert (tally.acknowledged, tally.cuts >= 20) == (3, True), tally.cuts


def test_a_program_that_writes_for_another_is_recorded_too() -> None:
    assert caught(InASpawnedChild, steps=1).lost == 0
    assert caught(lambda place, recorder: InASpawnedChild(place, recorder, "file fsync"), steps=1).lost


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        (FlatToy, "file fsync"),
        (InAChild, "file fsync"),
        (Toy, "file fsync"),  # a directory is renamed, and what is not synced is inside
        (Toy, "fsync of the new directory"),
        (Toy, "fsync of the parent"),
        (DescriptorAgain, ""),
        (InPlace, ""),
    ],
)
def test_a_mistake_is_caught_though_the_writer_has_digests_and_falls_back(kind: type[Toy], without: str) -> None:
    tally = caught(lambda place, recorder: kind(place, recorder, without))
    assert tally.lost
    assert "power cut after record" in tally.failures[0]
    assert "acknowledged" in tally.failures[0]


def builtin_open(place: Path, _: Recorder) -> None:
    (place / "gen-1").write_bytes(b"1")


def os_rename(place: Path, recorder: Recorder) -> None:
    Toy(place, recorder).save(1)
    os.rename(place / "gen-1", place / "gen-2")


def an_empty_directory(place: Path, _: Recorder) -> None:
    (place / "made").mkdir()


def os_link(place: Path, recorder: Recorder) -> None:
    Toy(place, recorder).save(1)
    os.link(place / "gen-1/data", place / "gen-2")


def a_write_to_what_was_recorded(place: Path, recorder: Recorder) -> None:
    Toy(place, recorder).save(1)
    with (place / "gen-1/data").open("r+b") as file:
        file.write(b"!")


def removed_and_made_again(place: Path, recorder: Recorder) -> None:
    FlatToy(place, recorder).save(1)
    (place / "gen-1").unlink()
    FlatToy(place, recorder).save(1)
    (place / "gen-1").unlink()


def a_tree_moved_away(place: Path, recorder: Recorder) -> None:
    Toy(place, recorder).save(1)
    shutil.move(place / "gen-1", place / "gen-2")
    descriptor = recorder.open_new(str(place / "gen-2/more"))
    recorder.close(descriptor)


def a_descriptor_of_elsewhere(place: Path, recorder: Recorder) -> None:
    descriptor = os.open(place / "gen-1", os.O_WRONLY | os.O_CREAT)
    recorder.write(descriptor, memoryview(b"1"))
    recorder.close(descriptor)


@pytest.mark.parametrize(
    "act",
    [
        builtin_open,
        os_rename,
        an_empty_directory,
        os_link,
        a_write_to_what_was_recorded,
        removed_and_made_again,
        a_tree_moved_away,
        a_descriptor_of_elsewhere,
    ],
)
def test_what_is_done_behind_the_recorder_is_a_blind_spot_and_no_green_light(act: Callable[[Path, Recorder], None]) -> None:
    with pytest.raises(BlindSpotError, match="behind the recorder"):
        replay(act, lambda cut, place: None)


def test_a_check_that_fails_is_told_with_the_cut_and_the_first_few_only() -> None:
    def never(cut: Cut, place: Path) -> None:
        raise ValueError("never right")

    tally = replay(lambda place, recorder: Toy(place, recorder).save(1), never)
    assert tally.lost == tally.cuts > 5
    assert len(tally.failures) == 5
    assert all("never right" in told and told.startswith("power cut after record") for told in tally.failures)
    assert replay(lambda place, recorder: Toy(place, recorder).save(1), never, lost_at_most=2).cuts == 2


def test_the_same_seed_chooses_the_same_cuts() -> None:
    def descriptions(seed: int) -> list[str]:
        told: list[str] = []
        replay(
            lambda place, recorder: [Toy(place, recorder).save(step) for step in (1, 2)],
            lambda cut, place: told.append(cut.lost),
            seed=seed,
            limit=20,
        )
        return told

    assert len(descriptions(1)) == 20
    assert descriptions(1) == descriptions(1) != descriptions(2)
