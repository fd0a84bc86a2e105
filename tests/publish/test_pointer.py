"""The two hints: LATEST, and the step that was being saved. Neither is ever the truth (rule 21; B18)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import milepost
from milepost.encode.digest import sha256
from milepost.errors import StoreError
from milepost.publish import layout
from milepost.publish.hints import is_foreign, read_latest, read_progress
from milepost.store.base import Store
from milepost.testing.faults import FaultStore, Killed
from tests.publish.world import World


def test_latest_names_the_newest_generation_and_the_digest_of_its_manifest(world: World) -> None:
    assert read_latest(world.plain()) is None
    a = world.open()
    for value in (1, 2):
        manifest = a.save(value)
        latest = read_latest(world.plain())
        assert latest is not None
        assert (latest.run_id, latest.generation, latest.step) == (manifest.run_id, manifest.number, manifest.step)
        assert latest.manifest_digest == sha256(world.plain().read(layout.manifest(manifest.number)))


def test_a_save_whose_pointer_cannot_be_written_counts(world: World) -> None:
    a = world.open()
    assert isinstance(a.store, FaultStore)
    a.store.fail("replace", layout.LATEST, StoreError("io error", kind="io", retryable=True))
    saved = a.save(1)
    world.check(saved)
    assert b'"latest-not-written"' in world.plain().read(layout.events(1))
    assert world.value() == 1


def test_the_step_is_noted_durably_before_the_first_byte_of_data(world: World) -> None:  # B18
    a = world.open()
    assert isinstance(a.store, FaultStore)
    a.save(1)
    a.store.kill("open_blob")
    with pytest.raises(Killed):
        a.save(70)
    progress = read_progress(world.plain())
    assert progress is not None
    assert (progress.step, progress.generation, progress.term, progress.attempt) == (70, 2, 1, 1)
    world.open()
    assert read_progress(world.plain()) == progress  # a start does not forget how far the last one came


@pytest.mark.parametrize("data", [b"", b"torn", b'{"run_id":"x"}\n'])
def test_a_hint_that_cannot_be_read_is_no_hint(world: World, data: bytes) -> None:
    world.open().save(1)
    for name in (layout.LATEST, layout.PROGRESS):
        world.plain().replace(name, data)
    assert read_latest(world.plain()) is None
    assert read_progress(world.plain()) is None
    assert world.value() == 1
    assert world.open().head == 1


def test_no_hint_is_there_before_the_first_save(world: World) -> None:
    world.open()
    assert read_latest(world.plain()) is None
    assert read_progress(world.plain()) is None


THEIRS = (
    b'{\n  "engines": ["default"],\n  "format_version": 1,\n  "generation": "generation_step00000007",\n  "global_step": 7\n}'
)


def asides(store: Store) -> dict[str, bytes]:
    return {entry.name: store.read(entry.name) for entry in store.list("") if ".before-" in entry.name}


@pytest.mark.parametrize("name", [layout.LATEST, layout.PROGRESS])
def test_somebody_elses_file_under_a_hints_name_is_set_aside_and_never_overwritten(
    world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:  # A8
    world.plain().replace(name, THEIRS)
    a = world.open()
    a.save(1)
    assert asides(world.plain()) == {f"{name}.before-t1": THEIRS}
    assert f"{name}.before-t1" in caplog.text
    assert read_latest(world.plain()) is not None
    assert read_progress(world.plain()) is not None
    world.plain().replace(name, THEIRS + b"2")  # the other program goes on, beside ours
    a.save(2)
    assert asides(world.plain()) == {f"{name}.before-t1": THEIRS, f"{name}.before-t1.1": THEIRS + b"2"}


def test_what_cannot_be_set_aside_durably_stays_and_the_save_counts(world: World) -> None:
    world.plain().replace(layout.LATEST, THEIRS)
    a = world.open()
    assert isinstance(a.store, FaultStore)
    a.store.fail("move", layout.LATEST, StoreError("io error", kind="io", retryable=True))
    world.check(a.save(1))
    assert world.plain().read(layout.LATEST) == THEIRS
    assert b'"latest-not-written"' in world.plain().read(layout.events(1))


def test_what_is_set_aside_is_set_aside_before_a_hint_of_ours_is_there(world: World) -> None:
    world.plain().replace(layout.LATEST, THEIRS)
    a = world.open()
    assert isinstance(a.store, FaultStore)
    a.store.kill("replace", layout.LATEST)
    with pytest.raises(Killed):
        a.save(1)
    assert asides(world.plain()) == {"LATEST.before-t1": THEIRS}
    assert read_latest(world.plain()) is None
    world.open().save(2)
    assert asides(world.plain()) == {"LATEST.before-t1": THEIRS}


def test_a_large_file_that_begins_with_zeros_is_somebody_elses(world: World) -> None:
    theirs = b"\0" * 5000 + b"theirs"
    for name in (layout.LATEST, layout.PROGRESS):
        world.plain().replace(name, theirs)
    world.open().save(1)
    assert asides(world.plain()) == {"LATEST.before-t1": theirs, "progress.json.before-t1": theirs}


@pytest.mark.parametrize("left", [b"", b"\0" * 200, b"\n"])
def test_what_a_power_cut_leaves_of_a_hint_is_not_taken_for_somebody_elses(world: World, left: bytes) -> None:
    world.open().save(1)
    world.plain().replace(layout.LATEST, left)
    world.open().save(2)
    assert asides(world.plain()) == {}


def test_a_damaged_hint_of_our_own_is_not_taken_for_somebody_elses(world: World) -> None:
    world.open().save(1)
    for name in (layout.LATEST, layout.PROGRESS):
        data = world.plain().read(name)
        flipped = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
        assert not any(is_foreign(damaged) for damaged in flipped)
        assert not any(is_foreign(data[:at]) for at in range(60, len(data)))


def test_a_link_under_a_hints_name_is_set_aside_too(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "checkpoint_7").mkdir()
    (root / "LATEST").symlink_to("checkpoint_7")
    milepost.save(root, {"w": np.zeros(3)}, step=1)
    assert os.readlink(root / "LATEST.before-t1") == "checkpoint_7"
    assert not (root / "LATEST").is_symlink()
    assert milepost.verify(root).ok


def test_it_is_set_aside_in_a_signed_run_too(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    root = tmp_path / "run"
    root.mkdir()
    (root / "LATEST").write_bytes(THEIRS)
    milepost.save(root, {"w": np.zeros(3)}, step=1, key_file=key)
    assert (root / "LATEST.before-t1").read_bytes() == THEIRS
    assert b"hmac" in (root / "LATEST").read_bytes()
