"""One flipped bit anywhere in a run root: `verify` names the file, and `resume` goes on from what is sound. B8"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.engine import oneshot
from milepost.errors import CorruptError, MilepostError
from milepost.publish import layout
from milepost.publish.view import read
from tests.damage.damaged import Trainer, copy_of, files_of, flip, make_run, newest_sound
from tests.engine.training import local


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run which no test changes for longer than it runs."""
    root = tmp_path_factory.mktemp("damage") / "run"
    make_run(root)
    return root


def named_by_verify(root: Path) -> set[str]:
    return {problem.name for problem in oneshot.verify(root).problems}


def test_the_run_has_every_kind_of_file_and_nothing_is_wrong_with_it(run: Path) -> None:
    kinds = {file.partition("/")[0] for file in files_of(run)}
    assert kinds == {
        *("milepost.json", "terms", "generations", "blobs", "progress.json", "LATEST"),
        *("pins", "quarantine", "ballast", "events", "writer.lock"),
    }
    report = oneshot.verify(run)
    assert report.ok
    assert [generation.number for generation in report.generations] == [4, 5, 6]
    view = read(local(run))
    assert {summary.term for summary in view.live.values()} == {2, 4}, "terms without any generation left are wanted here"
    shared = {blob.name for blob in view.live[5].blobs} & {blob.name for blob in view.live[6].blobs}
    assert shared - {blob.name for blob in view.live[4].blobs}


def test_a_flipped_bit_at_the_start_in_the_middle_or_at_the_end_of_any_file_is_named(run: Path) -> None:
    for file in files_of(run):
        path = run / file
        size = path.stat().st_size
        for byte in sorted({0, 1, size // 2, size - 2, size - 1}):
            for bit in (0, 2, 5, 7):
                flip(path, byte, bit)
                assert file in named_by_verify(run), (file, byte, bit)
                flip(path, byte, bit)
    assert oneshot.verify(run).ok


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_named(run: Path, data: st.DataObject, bit: int) -> None:
    file = data.draw(st.sampled_from(files_of(run)))
    byte = data.draw(st.integers(0, (run / file).stat().st_size - 1))
    flip(run / file, byte, bit)
    try:
        assert named_by_verify(run) == {file}
    finally:
        flip(run / file, byte, bit)


def positions(run: Path) -> Iterator[tuple[str, int]]:
    for file in files_of(run):
        size = (run / file).stat().st_size
        for byte in sorted({size // 3, size // 2, size - 1}):
            yield file, byte


def test_a_resume_after_a_flipped_bit_anywhere_takes_the_newest_sound_generation_and_says_what_it_passed_over(
    run: Path, tmp_path: Path
) -> None:
    taken = set()
    for file, byte in positions(run):
        root = copy_of(run, tmp_path / "run")
        flip(root / file, byte, 3)
        trainer = Trainer(root)
        restored = trainer.engine.resume()
        assert restored is not None, file
        hits = lambda start, stop, byte=byte: start <= byte < stop  # noqa: E731
        assert restored.generation == newest_sound(run, file, hits), file
        assert trainer.is_at(restored.step)
        assert [skipped.split()[1] for skipped in restored.skipped] == [str(n) for n in (6, 5) if n > restored.generation]
        older = [f"generation {number} unreadable: a record is damaged" for number in (4, 5) if file == layout.manifest(number)]
        # In a file's header: it was read only where something newer was found damaged, so that nothing was taken on trust.
        harmless = restored.generation < 6 and file in {blob.name for blob in read(local(run)).live[restored.generation].blobs}
        told = [f"generation {restored.generation} damaged: {file} (no component, only"] if harmless else []
        assert [text[: len(due)] for text, due in zip(restored.warnings, [*told, *older], strict=False)] == [*told, *older]
        assert restored.exact
        check_marks(root, file, restored.generation, harmless=harmless)
        trainer.save(7)
        trainer.engine.close()
        assert named_by_verify(root) <= {file}
        assert oneshot.load(root, parts=["counters"]) == {"counters": {"step": 7}}
        taken.add(restored.generation)
    assert taken == {4, 5, 6}


def check_marks(root: Path, file: str, taken: int, *, harmless: bool) -> None:
    """Check that what has damaged blobs is marked, and what was marked and is sound is not any more."""
    marks = read(local(root)).marks
    if file.startswith(layout.BLOBS):
        assert set(range(taken + 1, 7)) <= marks.keys()
        assert all(file in marks[number].reason for number in range(taken + 1, 7) if marks[number].term == 5)
    assert (taken in marks) is harmless


def test_a_bit_flipped_in_a_blob_that_all_generations_share_leaves_nothing_and_each_of_them_is_listed(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    trainer = Trainer(root)
    for step in (6, 7, 8, 9):
        trainer.save(step)
    trainer.engine.close()
    live = read(local(root)).live
    (shared,) = set.intersection(*({blob.name for blob in summary.blobs} for summary in live.values()))
    flip(root / shared, 4096 + 3000, 1)
    late = Trainer(root)
    with pytest.raises(CorruptError) as caught:
        late.engine.resume()
    assert caught.value.kind == "nothing-valid"
    for number in live:
        assert f"generation {number} damaged: {shared}" in caught.value.message
    assert f"milepost verify {root}" in caught.value.hint
    assert late.is_at(0), "nothing was loaded"
    with pytest.raises(MilepostError) as refused:
        late.engine.save(1)
    assert refused.value.kind == "not-resumed"
    late.engine.close()
    assert set(read(local(root)).live) == set(live)


def test_the_newest_settlement_before_its_first_generation_is_what_a_run_cannot_do_without(run: Path, tmp_path: Path) -> None:
    # Which generations a claim voided is written nowhere else, but in its event, until it has saved (rule 3a).
    root = copy_of(run, tmp_path / "run")
    with Trainer(root).engine as engine:
        engine.resume()
    newest = layout.settlement(5)
    before = (root / newest).read_bytes()
    flip(root / newest, 9, 1)
    assert named_by_verify(root) == {newest}
    assert oneshot.load(root) is not None, "the event of the claim holds it, too"
    (root / layout.events(5)).unlink()
    for action in (Trainer(root).engine.claim, lambda: oneshot.verify(root), lambda: oneshot.load(root)):
        with pytest.raises(CorruptError) as caught:
            action()  # type: ignore[operator]
        assert (caught.value.kind, caught.value.facts["name"]) == ("damaged-settlement", newest)
    (root / newest).write_bytes(before)
    assert Trainer(root).engine.resume() is not None


RECORDS = ["generations/", "generations/000006.json", "terms/", "milepost.json", "LATEST", "pins/"]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("names", RECORDS)
def test_a_claim_that_reads_a_record_wrong_once_takes_nothing_for_damage(run: Path, tmp_path: Path, names: str, nth: int) -> None:
    """It would settle on the generation before the one that it could not read, and make void what was acknowledged."""
    from milepost.testing.faults import FaultStore

    root = copy_of(run, tmp_path / "run")
    before = read(local(root))

    asked: Counter[str] = Counter()

    class Flaky(FaultStore):
        def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
            data = super().read(name, start, stop)
            if not data or not name.startswith(names):
                return data
            asked[name] += 1
            return data[:-1] + b"?" if asked[name] == nth else data

    with Trainer(Flaky(local(root))).engine as engine:  # type: ignore[arg-type]
        restored = engine.resume()
    assert restored is not None
    assert (restored.generation, restored.skipped) == (6, ())
    after = read(local(root))
    assert ({*after.live}, after.void, after.unsure) == ({*before.live}, before.void, before.unsure)
    shutil.rmtree(root)


def test_damage_that_passes_on_a_second_read_is_none(run: Path, tmp_path: Path) -> None:
    from milepost.testing.faults import FaultStore

    root = copy_of(run, tmp_path / "run")
    (blob,) = {blob.name for blob in read(local(root)).live[6].blobs} - {blob.name for blob in read(local(root)).live[5].blobs}

    class Flaky(FaultStore):
        times = 1

        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if name == blob and self.times:
                self.times -= 1
                into[:1] = bytes([into[0] ^ 1])
            return got

    restored = Trainer(Flaky(local(root))).engine.resume()  # type: ignore[arg-type]
    assert restored is not None
    assert (restored.generation, restored.skipped) == (6, ())
    shutil.rmtree(root)
