"""Truncated, emptied, removed, foreign and future files in a run root: found, named, and survived where anything is left. B8"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.encode.digest import seal, unseal
from milepost.engine import oneshot
from milepost.errors import CorruptError, MismatchError
from milepost.publish import layout, pins
from milepost.publish.manifest import encode
from milepost.publish.view import read
from milepost.records import FORMAT_VERSION, Latest
from tests.damage.damaged import Trainer, copy_of, files_of, make_run, newest_sound
from tests.engine.training import local, snapshot


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files") / "run"
    make_run(root)
    return root


@pytest.fixture(scope="module")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files") / "other"
    trainer = Trainer(root)
    for step in (11, 12, 13, 14, 15, 16):
        trainer.save(step)
    trainer.engine.close()
    return root


def take_up(root: Path) -> tuple[int, Trainer]:
    """Resume, train on, and return from which generation."""
    trainer = Trainer(root)
    restored = trainer.engine.resume()
    assert restored is not None, "data was taken for a fresh start"
    assert trainer.is_at(restored.step)
    trainer.save(20)
    trainer.engine.close()
    return restored.generation, trainer


@pytest.mark.parametrize("size", ["half", "all but a byte", "nothing"])
def test_a_truncated_file_is_named_and_a_resume_goes_on_from_what_is_whole(run: Path, tmp_path: Path, size: str) -> None:
    for file in files_of(run):
        data = (run / file).read_bytes()
        kept = {"half": data[: len(data) // 2], "all but a byte": data[:-1], "nothing": b""}[size]
        root = copy_of(run, tmp_path / "run")
        (root / file).write_bytes(kept)
        report = oneshot.verify(root)
        # An empty lock names nobody, an empty log says nothing, and a shorter ballast is one all the same.
        harmless = file == "ballast" or (not kept and (file == "writer.lock" or file.startswith("events/")))
        named = {problem.name for problem in (*report.problems, *report.torn)}
        assert named == (set() if harmless else {file})
        # A power cut may do the same to what is never synced, and an operator is not to look for a bad disk then.
        assert report.ok == (harmless or file in ("LATEST", "writer.lock") or file.startswith("events/"))
        end = len(kept)
        assert take_up(root)[0] == newest_sound(run, file, lambda _, stop, end=end: stop > end), file  # type: ignore[misc]


def test_a_longer_file_is_named(run: Path, tmp_path: Path) -> None:
    for file in files_of(run):
        root = copy_of(run, tmp_path / "run")
        with (root / file).open("ab") as opened:
            opened.write(b"\n" if file.startswith("events/") else b"}")
        assert {problem.name for problem in oneshot.verify(root).problems} == {file}


def test_a_quick_check_finds_a_blob_of_another_size_without_reading_it(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    blob = read(local(root)).live[6].blobs[0].name
    data = (root / blob).read_bytes()
    for changed in (data[:-1], data + b"x", b""):
        (root / blob).write_bytes(changed)
        assert {problem.name for problem in oneshot.verify(root, full=False).problems} == {blob}


def test_a_file_that_is_gone_never_makes_a_fresh_start_of_a_run(run: Path, tmp_path: Path) -> None:
    for file in files_of(run):
        root = copy_of(run, tmp_path / "run")
        (root / file).unlink()
        report = oneshot.verify(root)
        if file.startswith("blobs/") or file == "milepost.json":
            assert {problem.name for problem in report.problems} == {file}
            assert "gone" in str(report.problems)
        assert take_up(root)[0] == newest_sound(run, file, lambda *_: True), file


def test_a_run_without_its_milepost_json_keeps_its_run_id(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    before = read(local(root)).run_id
    (root / "milepost.json").unlink()
    take_up(root)
    assert {summary.run_id for summary in read(local(root)).live.values()} == {before}


def test_a_run_that_never_saved_and_whose_milepost_json_is_damaged_is_not_guessed_at(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "milepost.json").write_bytes(b"{")
    before = snapshot(local(root))
    for look in (oneshot.load, oneshot.verify, oneshot.reset):
        with pytest.raises(CorruptError) as caught:
            look(root)
        assert (caught.value.kind, caught.value.facts["name"]) == ("damaged-record", "milepost.json")
        assert "remove milepost.json" in caught.value.hint
    assert snapshot(local(root)) == before


def test_a_manifest_of_another_run_is_left_alone_and_its_number_skipped(run: Path, other_run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    foreign = (other_run / layout.manifest(6)).read_bytes()
    shutil.copy(other_run / layout.manifest(6), root / "generations" / "000007.json")
    states = {generation.number: generation.state for generation in oneshot.verify(root).generations}
    assert states == {4: "valid", 5: "valid", 6: "valid", 7: "foreign"}
    assert take_up(root)[0] == 6
    assert sorted(read(local(root)).live)[-1] == 8
    assert (root / "generations" / "000007.json").read_bytes() == foreign


def test_a_manifest_of_another_run_over_the_newest_one_makes_the_one_before_the_newest(
    run: Path, other_run: Path, tmp_path: Path
) -> None:
    root = copy_of(run, tmp_path / "run")
    shutil.copy(other_run / layout.manifest(6), root / layout.manifest(6))
    assert take_up(root)[0] == 5


def test_another_runs_root_copied_over_this_one_is_not_taken_for_a_fresh_start(
    run: Path, other_run: Path, tmp_path: Path
) -> None:
    # The terms are this run's, the manifests the other's: whose training was meant is not for a program to say.
    root = copy_of(run, tmp_path / "run")
    shutil.copytree(other_run / "generations", root / "generations", dirs_exist_ok=True)
    before = snapshot(local(root))
    with pytest.raises(CorruptError) as caught:
        Trainer(root).engine.resume()
    assert caught.value.kind == "nothing-valid"
    assert "generations/000006.json" in str(caught.value.facts["of_another_run"])
    assert {name for name in before if name.startswith(("generations/", "blobs/"))} <= set(snapshot(local(root)))


def test_files_that_are_not_mileposts_are_left_alone(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    theirs = ["notes.txt", "blobs/policy.pt", "blobs/000001.safetensors", "generations/README", "terms/x.json", "ckpt/model.zip"]
    for name in theirs:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"mine")
    take_up(root)
    oneshot.reset(root)
    for name in ("notes.txt", "ckpt/model.zip"):
        assert (root / name).read_bytes() == b"mine"
    assert len([path for path in root.rglob("*") if path.is_file() and path.read_bytes() == b"mine"]) == len(theirs)


def with_member(sealed: bytes, **members: object) -> bytes:
    record = msgspec.json.decode(unseal(sealed, "test"))
    return seal(msgspec.json.encode({**record, **members}))


@pytest.mark.parametrize("file", ["milepost.json", layout.manifest(6), layout.manifest(4)])
@pytest.mark.parametrize("shape", ["the same members", "other members"])
def test_a_newer_format_is_refused_whole_with_what_to_do_and_nothing_is_touched(
    run: Path, tmp_path: Path, file: str, shape: str
) -> None:
    root = copy_of(run, tmp_path / "run")
    sealed = (root / file).read_bytes()
    if shape == "the same members":
        newer = with_member(sealed, format_version=99)
    else:
        newer = with_member(seal(b"{}"), format_version=99, run={"id": "x"})
    (root / file).write_bytes(newer)
    (root / "writer.lock").write_bytes(b"")
    before = snapshot(local(root))
    trainer = Trainer(root)
    actions = [
        trainer.engine.resume,
        lambda: oneshot.verify(root),
        lambda: oneshot.load(root),
        lambda: oneshot.save(root, {"policy": 1}),
        lambda: oneshot.rollback(root, 4),
        lambda: oneshot.reset(root),
    ]
    for action in actions:
        with pytest.raises(MismatchError) as caught:
            action()
        assert caught.value.kind == "format"
        assert "newer milepost" in caught.value.message
        assert "upgrade" in caught.value.hint
        assert [(d.path, d.saved, d.live) for d in caught.value.differences] == [(file, "format 99", f"format {FORMAT_VERSION}")]
    assert trainer.is_at(0)
    assert snapshot(local(root)) == before


@pytest.mark.parametrize("odd", ["fifo", "loop", "directory"])
def test_what_is_no_file_under_a_name_of_mileposts_hangs_nobody(run: Path, tmp_path: Path, odd: str) -> None:
    root = copy_of(run, tmp_path / "run")
    for name in ("LATEST", "progress.json", "ballast", layout.manifest(7), "terms/x", "blobs/x", "events/x"):
        path = root / name
        path.unlink(missing_ok=True)
        if odd == "fifo":
            os.mkfifo(path)
        elif odd == "loop":
            path.symlink_to(path.name)
        else:
            path.mkdir()
    assert oneshot.verify(root).resume_from == 6
    assert isinstance(oneshot.load(root), dict)
    with Trainer(root).engine as engine:
        assert engine.resume().generation == 6  # type: ignore[union-attr]
        if odd != "directory":
            return
    assert len(list(root.glob("LATEST.before-*"))) == 1  # somebody's, perhaps: it has another name now
    (root / "ballast").rmdir()
    trainer = Trainer(root)
    trainer.engine.resume()
    trainer.save(30)
    assert trainer.engine.wait().number == 8, "the taken number is stepped over"  # type: ignore[union-attr]
    trainer.engine.close()


def test_generations_that_somebody_removed_are_missed(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    (root / layout.manifest(6)).unlink()
    report = oneshot.verify(root)
    assert [(problem.name, problem.problem) for problem in report.problems] == [(layout.manifest(6), "it is gone")]
    pins.pin(local(root), 5, by="a test")
    trainer = Trainer(root)
    with trainer.engine as engine:
        restored = engine.resume()
        assert restored is not None
        assert restored.generation == 5
        assert "generation 6 unreadable: LATEST tells of it" in restored.skipped[0]
        trainer.save(7)
        assert engine.wait().number == 7, "the number of the one that was removed is not used again"  # type: ignore[union-attr]
    assert oneshot.verify(root).ok


@pytest.mark.parametrize("number", [6 + 1001, 10**12 - 1])
def test_a_pointer_that_lies_uses_up_no_numbers(run: Path, tmp_path: Path, number: int) -> None:
    root = copy_of(run, tmp_path / "run")
    run_id = read(local(root)).run_id
    (root / layout.LATEST).write_bytes(encode(Latest(run_id, number, 9, "")))
    trainer = Trainer(root)
    with trainer.engine as engine:
        assert engine.resume() is not None
        trainer.save(7)
        assert engine.wait().number == 7  # type: ignore[union-attr]


def test_a_first_term_whose_generations_were_all_removed_is_no_fresh_start(tmp_path: Path) -> None:
    root = tmp_path / "run"
    oneshot.save(root, [1])
    (root / layout.manifest(1)).unlink()
    before = snapshot(local(root))
    with pytest.raises(CorruptError) as caught:
        oneshot.save(root, [2])
    assert caught.value.kind == "nothing-valid"
    assert caught.value.facts["newest_that_was_there"] == layout.manifest(1)
    assert {name for name in before if name.startswith("blobs/")} <= snapshot(local(root)).keys()


ABSURD: dict[str, dict[str, Any]] = {
    "a blob outside the root": {"blobs": [{"name": f"blobs/../../x-t1-{0:016x}.safetensors", "size_bytes": 1, "digest": ""}]},
    "a blob that is no blob": {"blobs": [{"name": "milepost.json", "size_bytes": 1, "digest": ""}]},
    "a time that is none": {"elapsed_s": "zz"},
    "an endless time": {"elapsed_s": "inf"},
    "a time beyond all calendars": {"commit_timestamp": 2**64 - 1},
    "a metric that is none": {"metrics": {"x": {"value": "high", "step": 1}}},
}


@pytest.mark.parametrize("what", ABSURD)
def test_a_manifest_that_is_sealed_and_absurd_is_passed_over_and_named(run: Path, tmp_path: Path, what: str) -> None:
    root = copy_of(run, tmp_path / "run")
    path = root / layout.manifest(6)
    path.write_bytes(with_member(path.read_bytes(), **ABSURD[what]))
    assert [problem.name for problem in oneshot.verify(root).problems] == [layout.manifest(6)]
    assert take_up(root)[0] == 5


def test_a_manifest_as_deep_as_no_tree_ever_is_is_passed_over(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    path = root / layout.manifest(6)
    body = unseal(path.read_bytes(), "test")[:-1] + b',"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    path.write_bytes(seal(body))
    assert [problem.name for problem in oneshot.verify(root).problems] == [layout.manifest(6)]
    assert take_up(root)[0] == 5


def test_files_that_are_not_milepost_s_are_nobody_s_damage_and_stay(run: Path, tmp_path: Path) -> None:
    root = copy_of(run, tmp_path / "run")
    strangers = [
        *("notes.txt", "terms/0001.json.bak", "terms/README", "pins/.nfs0000001", "quarantine/why.txt", "events/0001.jsonl.gz"),
        *("generations/README", "blobs/README", "service/own.json"),
    ]
    for name in strangers:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"somebody else's")
    assert oneshot.verify(root).ok
    trainer = Trainer(root)
    assert trainer.engine.resume() is not None
    trainer.save(7)
    trainer.engine.close()
    assert oneshot.verify(root).ok
    assert {name for name in strangers if (root / name).read_bytes() == b"somebody else's"} == set(strangers)
