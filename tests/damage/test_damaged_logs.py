"""One flipped bit in any file of logs: the rows it touches are named, and what loads is what some save acknowledged. B4, B8"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.records import BlobRecord, LeafRecord, Manifest
from tests.damage.damaged import flip, make_run_with_logs
from tests.engine.training import Training, bits, local, state_at, with_logs

LAST = 9
"""At this step the three that are kept share a piece of the ring."""
LOGS = ("replay/ring.", "replay/episodes.")


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    with with_logs():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run which no test changes for longer than it runs."""
    root = tmp_path_factory.mktemp("logs") / "run"
    make_run_with_logs(root, LAST)
    return root


def generations(root: Path) -> dict[int, Manifest]:
    store = local(root)
    return {number: load_record(store, layout.manifest(number), Manifest) for number in read(store).live}


def hit_by(manifest: Manifest, blob: BlobRecord, byte: int) -> list[LeafRecord]:
    """Return the leaves of a generation for which this byte of a file is needed."""
    first, last = byte, byte + 1
    if blob.frames:
        stored = pairwise(accumulate((size for _, size in blob.frames), initial=0))
        raw = pairwise(accumulate((size for size, _ in blob.frames), initial=0))
        first, last = next(span for span, (start, stop) in zip(raw, stored, strict=True) if start <= byte < stop)
    leaves = (leaf for component in manifest.components for leaf in component.leaves)
    return [leaf for leaf in leaves if manifest.blobs[leaf.blob] == blob and leaf.start < last and first < leaf.stop]


def places(blob: BlobRecord) -> Iterator[int]:
    """Yield some bytes of a file: of a packed one in each frame, of a plain one in the header and among the leaves."""
    if blob.frames:
        yield from ((start + stop) // 2 for start, stop in pairwise(accumulate((size for _, size in blob.frames), initial=0)))
    else:
        yield from (100, *range(4096, blob.size_bytes, 29))


def test_the_run_has_what_is_to_be_damaged(run: Path) -> None:
    found = generations(run)
    assert sorted(found) == [LAST - 2, LAST - 1, LAST]
    rows = [blob for manifest in found.values() for blob in manifest.blobs if ".replay_" in blob.name]
    assert len(rows) > len(set(rows)), "some are shared"
    assert {bool(blob.frames) for blob in rows} == {False, True}
    assert oneshot.verify(run).ok


def test_damage_is_told_by_rows_and_takes_no_generation_that_does_not_need_them(run: Path, tmp_path: Path) -> None:
    found = generations(run)
    blobs = {blob.name: blob for manifest in found.values() for blob in manifest.blobs}
    whole: set[int | None] = set()
    for blob in blobs.values():
        for byte in places(blob):
            flip(run / blob.name, byte, byte % 8)
            report = oneshot.verify(run)
            assert {problem.name for problem in report.problems} == {blob.name}
            sound = {report.number for report in report.generations if not report.damaged}
            for problem in report.problems:
                assert problem.generation is not None
                leaves = hit_by(found[problem.generation], blob, byte)
                assert set(problem.rows) == {leaf.path for leaf in leaves if leaf.path.startswith(LOGS)}, (blob.name, byte)
                assert not leaves or problem.generation not in sound
            flip(run / blob.name, byte, byte % 8)
            whole.add(max(sound, default=None))
    assert {LAST, LAST - 1, None} <= whole


def test_a_resume_past_damaged_rows_has_the_window_of_an_acknowledged_save_or_says_that_it_has_none(
    run: Path, tmp_path: Path
) -> None:
    found = generations(run)
    blobs = {blob.name: blob for manifest in found.values() for blob in manifest.blobs if ".replay_" in blob.name}
    taken = set()
    for blob in blobs.values():
        for byte in list(places(blob))[:: 1 if blob.frames else 5]:
            root = tmp_path / "run"
            shutil.copytree(run, root)
            flip(root / blob.name, byte, byte % 8)
            spoilt = {number for number, manifest in found.items() if hit_by(manifest, blob, byte)}
            newest = max(found.keys() - spoilt, default=LAST)
            with Training(root) as training:
                restored = training.engine.resume()
                assert restored is not None
                assert restored.generation == newest, (blob.name, byte)
                assert restored.exact == (len(spoilt) < len(found))
                if restored.exact:
                    assert training.is_at(newest)
                else:
                    assert [text.split(":")[0] for text in restored.inexact] == ["replay"]
                    assert bits(training.state["replay"]) == bits(state_at(0)["replay"]), "left as it was, not half of it"
                # The logs know nothing as saved that is damaged: the next save holds all of its window.
                training.save(LAST + 1)
            assert bits(oneshot.load(root)) == bits(state_at(LAST + 1))
            assert {problem.name for problem in oneshot.verify(root).problems} <= {blob.name}
            taken.add((newest, bool(len(spoilt) < len(found))))
            shutil.rmtree(root)
    assert taken >= {(LAST, True), (LAST - 1, True), (LAST, False)}
