"""The root ends at its own directory: no link inside it is followed, nothing that is no plain file is waited for or written."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import milepost
from milepost.errors import CorruptError, MilepostError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.store.lock import read_holder
from tests.engine.training import local
from tests.hostile.planted import BLOB, HEAD, resume, run_in

DIRECTORIES = [name.rstrip("/") for name in layout.DIRECTORIES]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def planted(path: Path, how: str, outside: Path) -> None:
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to(outside)
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may not be long
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    else:
        path.symlink_to("/dev/zero")


NOT_FILES = ["link", "loop", "fifo", "socket", "device"]


@pytest.mark.parametrize("how", NOT_FILES)
@pytest.mark.parametrize("name", [HEAD, BLOB, "LATEST", "progress.json", "milepost.json", "pins/000002", "terms/0002.from.json"])
def test_what_lies_outside_is_not_read_through_a_name_inside(name: str, how: str, tmp_path: Path) -> None:
    root, outside = run_in(tmp_path / "run"), tmp_path / "outside"
    # Even the very bytes that are due: where they lie is not the root.
    outside.write_bytes((root / name).read_bytes())
    planted(root / name, how, outside)
    before = outside.read_bytes()
    with pytest.raises(NotFoundError):
        local(root).read(name)
    assert name not in {entry.name for entry in local(root).list("")}
    for use in (milepost.load, milepost.verify, lambda root: resume(root)):
        with contextlib.suppress(MilepostError):
            use(root)  # type: ignore[operator]
    assert outside.read_bytes() == before


@pytest.mark.parametrize("how", ["link", "loop", "fifo", "socket", "device"])
@pytest.mark.parametrize("name", ["writer.lock", "events/0003.jsonl"])
def test_what_is_written_where_it_lies_is_not_written_through_a_link(name: str, how: str, tmp_path: Path) -> None:
    root, outside = run_in(tmp_path / "run"), tmp_path / "outside"
    outside.write_bytes(b"precious\n")
    planted(root / name, how, outside)
    if name == "writer.lock":
        assert read_holder(str(root / name)) is None
        with pytest.raises(StoreError):
            resume(root)
    else:
        restored, _ = resume(root)  # a log that cannot be written stops nobody
        assert restored is not None
    assert outside.read_bytes() == b"precious\n"


@pytest.mark.parametrize("name", ["writer.lock", "events/0003.jsonl"])
def test_what_is_written_where_it_lies_is_no_second_name_of_another_file(name: str, tmp_path: Path) -> None:
    root, outside = run_in(tmp_path / "run"), tmp_path / "outside"
    outside.write_bytes(b"precious\n")
    os.link(outside, root / name)
    try:
        resume(root)
    except StoreError as error:
        assert (name, error.kind) == ("writer.lock", "link")  # noqa: PT017 - an event log that cannot be written stops nobody
    assert outside.read_bytes() == b"precious\n"


def test_a_copy_by_hard_links_goes_on_like_any_other(tmp_path: Path) -> None:
    """As ``cp -al`` and snapshots by rsync make them."""
    root, copy = run_in(tmp_path / "run"), tmp_path / "copy"
    resume(root)
    for path in root.rglob("*"):
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            os.link(path, target)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    restored, _ = resume(copy)
    assert restored is not None
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_directory_of_the_root_that_is_a_link_is_refused_and_nothing_outside_is_touched(directory: str, tmp_path: Path) -> None:
    root, outside = run_in(tmp_path / "run"), tmp_path / "outside"
    (root / directory).mkdir(exist_ok=True)
    (root / directory).rename(outside)
    (outside / "000009-t1-00000000000000aa.safetensors").write_bytes(b"a leftover, were it inside")
    (root / directory).symlink_to(outside)
    before = contents(outside)
    uses: list[Callable[[Path], Any]] = [milepost.load, milepost.verify, resume, lambda root: milepost.save(root, {"extra": {}})]
    for use in uses:
        try:
            use(root)
        except MilepostError as error:
            assert error.kind in ("link", "nothing-valid"), error  # noqa: PT017
        else:
            assert directory in ("events",), "nothing stands on it"
    assert contents(outside) == before
    store = local(root)
    for act in (
        lambda: store.delete(f"{directory}/x"),
        lambda: store.create(f"{directory}/x", b"x"),
        lambda: store.replace(f"{directory}/x", b"x"),
        lambda: store.append(f"{directory}/x", b"x"),
        lambda: store.open_blob(f"{directory}/x"),
        lambda: store.move("milepost.json", f"{directory}/x"),
        lambda: store.sync(f"{directory}/"),
        lambda: store.list(f"{directory}/"),
    ):
        with pytest.raises(StoreError) as caught:
            act()  # type: ignore[no-untyped-call]
        assert caught.value.kind == "link"
    assert contents(outside) == before


def test_a_link_where_a_record_is_replaced_is_replaced_itself(tmp_path: Path) -> None:
    root, outside = run_in(tmp_path / "run"), tmp_path / "outside"
    outside.write_bytes(b"precious\n")
    for name in ("LATEST", "progress.json", "ballast"):
        planted(root / name, "link", outside)
    restored, _ = resume(root)
    assert restored is not None
    milepost.save(root, {"extra": {}})
    assert outside.read_bytes() == b"precious\n"
    assert not (root / "LATEST").is_symlink()


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    run_in(tmp_path / "big disk")
    (tmp_path / "run").symlink_to(tmp_path / "big disk")
    restored, _ = resume(tmp_path / "run")
    assert restored is not None
    assert milepost.verify(tmp_path / "run").ok


def test_a_blob_that_is_all_hole_is_damage_and_takes_no_memory(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    os.truncate(root / BLOB, 1 << 40)
    tree: Any = milepost.load(root)
    assert tree["counters"]["step"] == 20
    report = milepost.verify(root)
    assert [problem.name for problem in report.problems] == [BLOB]


def test_a_directory_in_the_place_of_milepost_json_is_no_run(tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "milepost.json").mkdir(parents=True)
    for use in (milepost.load, milepost.verify):
        with pytest.raises(NotFoundError):
            use(root)  # type: ignore[operator]
    with pytest.raises((CorruptError, NotFoundError, StoreError)):
        milepost.save(root, {"extra": {}})
