"""The root is removed, moved away or put back from a copy while a trainer lives, and another process starts there.

Both have the same term then, and only what the fence holds tells them apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from tests.engine.training import Training, bits, local, snapshot, state_at


def removed(root: Path) -> None:
    shutil.rmtree(root)


def moved_away(root: Path) -> None:
    root.rename(root.with_suffix(".old"))


def put_back_from_a_copy(root: Path) -> None:
    shutil.rmtree(root)
    shutil.copytree(root.with_suffix(".copy"), root)


@pytest.mark.parametrize("replace", [removed, moved_away, put_back_from_a_copy])
def test_a_writer_whose_root_was_replaced_is_told_and_takes_nothing_of_the_new_one(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    root = tmp_path / "run"
    with Training(root) as first:
        first.save(1)
    shutil.copytree(root, root.with_suffix(".copy"))
    old = Training(root, keep=Keep(last=1))
    old.engine.resume()
    for step in (2, 3):
        old.save(step)
    replace(root)
    with Training(root, keep=Keep(last=1)) as new:
        new.engine.resume()
        kept = [new.save(step).number for step in (11, 12, 13)]
        if replace is not put_back_from_a_copy:
            # The same term as the old one's, and the numbers meet.
            new.save(14)
        before = {name: data for name, data in snapshot(local(root)).items() if not name.startswith(("blobs/", "events/"))}
        with pytest.raises(ConflictError) as caught:
            old.save(4)
        assert caught.value.kind in ("replaced", "fenced")
        assert "stop this process" in caught.value.hint
        after = snapshot(local(root))
        assert {name: after.get(name) for name in before} | {"progress.json": b"", "LATEST": b""} == before | {
            "progress.json": b"",
            "LATEST": b"",
        }
        assert new.save(15).number > kept[-1]
    assert oneshot.verify(local(root)).ok
    assert bits(oneshot.load(root)) == bits(state_at(15))
    assert read(local(root)).foreign == frozenset() or replace is not put_back_from_a_copy
