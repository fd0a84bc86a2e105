"""What is only a hint stops nobody: events, LATEST, progress, the ballast, the name in the lock file, marks. B18, C14"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.errors import StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.hints import read_progress
from milepost.store.posix import CHANGES
from milepost.testing.faults import FileOperation
from milepost.testing.sick import SickPosix, failing
from tests.engine.training import Training, bits, local, state_at

pytestmark = pytest.mark.usefixtures("_logs")

HINTS = {
    "events": (layout.EVENTS, "open_append"),
    "LATEST": (layout.LATEST, "replace"),
    "progress": (layout.PROGRESS, "replace"),
    "ballast": (layout.BALLAST, "link"),
    "lock name": (layout.LOCK, "truncate"),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_that_can_never_be_written_stops_neither_a_start_nor_a_save_nor_the_end(
    place: Path, hint: str, number: int
) -> None:
    name, call = HINTS[hint]
    last_part = name.rstrip("/").rpartition("/")[2]

    def is_of_the_hint(operation: FileOperation) -> bool:
        if call == "truncate":
            return operation.name in ("truncate", "write_at")
        return operation.name == call and any(last_part in str(argument) for argument in operation.arguments)

    posix = SickPosix(failing(number), calls=CHANGES, lasting=True, only=is_of_the_hint)
    with Training(local(place, posix), keep=Keep(last=2)) as training:
        training.engine.resume()
        for step in (1, 2, 3):
            assert training.save(step).step == step
    assert posix.struck
    with Training(local(place, posix)) as training:
        assert training.engine.resume().step == 3  # type: ignore[union-attr]
        training.save(4)
    assert bits(oneshot.load(place)) == bits(state_at(4))
    with Training(place) as training:  # the disk is well again
        training.engine.resume()
    assert oneshot.verify(place).problems == ()


def test_a_save_whose_step_could_not_be_noted_is_saved_and_that_is_told(place: Path) -> None:
    def is_progress(operation: FileOperation) -> bool:
        return any("progress.json" in str(argument) for argument in operation.arguments)

    posix = SickPosix(failing(errno.EIO), at=10**9, calls=CHANGES, only=is_progress)
    with Training(local(place, posix)) as training:
        training.save(1)
        posix._at, posix._lasting = 0, True
        training.save(2)
        told = (place / layout.events(1)).read_text()
        assert '"event":"progress-not-written"' in told
        assert read_progress(local(place)).step == 1  # type: ignore[union-attr]
        posix.heal()
        training.save(3)
    assert read_progress(local(place)).step == 3  # type: ignore[union-attr]


def test_what_was_given_up_is_not_told_of_as_lost_where_the_pointer_could_not_be_moved(place: Path) -> None:
    with Training(place, keep=Keep(last=3)) as training:
        for step in (1, 2, 3):
            training.save(step)
    (place / layout.manifest(3)).write_bytes(b"torn")

    def moves_the_pointer(operation: FileOperation) -> bool:
        return operation.name == "replace" and str(operation.arguments[1]).endswith(layout.LATEST)

    posix = SickPosix(failing(errno.ENOSPC), calls=CHANGES, lasting=True, only=moves_the_pointer)
    oneshot.drop(local(place, posix), 3)
    assert posix.struck
    assert oneshot.verify(place).problems == ()
    with Training(place) as training:
        assert training.engine.resume().skipped == ()  # type: ignore[union-attr]


def test_a_blob_that_the_disk_cannot_read_is_neither_damage_nor_absence_and_an_older_generation_can_be_asked_for(
    place: Path,
) -> None:
    with Training(place, keep=Keep(last=3)) as training:
        saved = [training.save(step) for step in (1, 2, 3)]
    bad = min({blob.name for blob in saved[2].blobs} - {blob.name for blob in saved[1].blobs})

    def reads_the_bad_sector(operation: FileOperation) -> bool:
        return str(operation.arguments[0]).endswith(bad)

    posix = SickPosix(failing(errno.EIO), calls=frozenset({"open_read"}), lasting=True, only=reads_the_bad_sector)
    store = local(place, posix)
    with Training(store) as training:
        for ask in (training.engine.resume, lambda: oneshot.load(store)):
            with pytest.raises(StoreError) as caught:
                ask()
            assert (caught.value.kind, caught.value.facts["name"]) == ("io", bad)
        assert training.is_at(0), "nothing live was touched"
        assert not list((place / "quarantine").glob("*")), "it is not marked as damaged"
        assert training.engine.resume(2).step == 2  # type: ignore[union-attr]
        assert training.save(9).step == 9
    assert oneshot.rollback(store, 2).step == 2, "the operator's way to the same"
    posix.heal()
    assert bits(oneshot.load(place, which=3)) == bits(state_at(3)), "it was there all the time"
