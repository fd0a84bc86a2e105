"""The two hints: LATEST, and the step that was being saved. Neither is ever the truth (rule 21; B18)."""

from __future__ import annotations

import pytest

from milepost.encode.digest import sha256
from milepost.errors import StoreError
from milepost.publish import layout
from milepost.publish.hints import read_latest, read_progress
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
