"""A record whose seal fits may still say anything. What cannot be is refused before anybody acts on it (issue 3, point 5)."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import milepost
from milepost.encode.digest import seal
from milepost.errors import ConflictError, CorruptError, MilepostError, UsageError
from milepost.publish import layout, manifest
from milepost.publish.manifest import decode, decode_manifest, encode, read_record
from milepost.publish.view import read
from milepost.records import Fence, Latest, Manifest, Pin, Settlement, Summary
from milepost.store.memory import MemoryStore
from tests.engine.training import local
from tests.hostile.planted import BLOB, HEAD, Change, at, body_of, live_state, reseal, resume, run_in, same_state, write

HUGE = 10**400


def leaf(**fields: Any) -> Change:
    def change(body: Any) -> None:
        body["components"][0]["leaves"][0].update(fields)

    return change


def copied(*keys: str | int) -> Change:
    def change(body: Any) -> None:
        for key in keys:
            body = body[key]
        body.append(body[0])

    return change


def compressed(frames: list[list[int]]) -> Change:
    def change(body: Any) -> None:
        body["blobs"][0].update(name=BLOB + ".zst", frames=frames)

    return change


CANNOT_BE: dict[str, Change] = {
    "a path in the place of a blob": at("blobs", 0, "name", value="blobs/../milepost.json"),
    "an absolute path": at("blobs", 0, "name", value="/etc/passwd"),
    "a backslash": at("blobs", 0, "name", value="blobs\\..\\x-t1-00000000000000aa.safetensors"),
    "a NUL": at("blobs", 0, "name", value="blobs/000003-t2-00000000000000aa.safetensors\0"),
    "a newline at the end": at("blobs", 0, "name", value=BLOB + "\n"),
    "digits of another script": at("blobs", 0, "name", value="blobs/٠٠٠٠٠3-t2-00000000000000aa.safetensors"),
    "a name without end": at("blobs", 0, "name", value="blobs/" + "0" * 5000 + "-t2-00000000000000aa.safetensors"),
    "a manifest in the place of a blob": at("blobs", 0, "name", value="generations/000002.json"),
    "the lock in the place of a blob": at("blobs", 0, "name", value="writer.lock"),
    "a blob of a run that was set aside": at("blobs", 0, "name", value="reset/x/blobs/000003-t2-00000000000000aa.safetensors"),
    "an unfinished file": at("blobs", 0, "name", value=BLOB + ".part"),
    "a temporary file without a number": at("blobs", 0, "name", value="blobs/LATEST-t2-00000000000000aa.tmp"),
    "a blob of less than nothing": at("blobs", 0, "size_bytes", value=-1),
    "a blob of more than a disk": at("blobs", 0, "size_bytes", value=1 << 63),
    "the same blob again and again": copied("blobs"),
    "frames in a file that has none": at("blobs", 0, "frames", value=[[372, 372]]),
    "a compressed file without frames": compressed([]),
    "a frame of nothing": compressed([[372, 372], [0, 0]]),
    "a frame of less than nothing": compressed([[-1, 373], [373, -1]]),
    "a frame that no reader has room for": compressed([[(4 << 20) + 1, 372]]),
    "a frame that is longer than what is in it": compressed([[10, 372]]),
    "frames that are longer than their file": compressed([[372, 372], [372, 372]]),
    "a leaf beyond the last frame": compressed([[371, 372]]),
    "a component twice": copied("components"),
    "a leaf over another": copied("components", 0, "leaves"),
    "a leaf before its blob": leaf(start=-8),
    "a leaf beyond its blob": leaf(stop=1 << 40),
    "a leaf that ends before it starts": leaf(start=200, stop=100),
    "a leaf of no blob": leaf(blob=-1),
    "a negative shape": leaf(shape=[-1]),
    "a shape without end": leaf(shape=[1] * 65),
    "a number beyond all": at("number", value=HUGE),
    "a number that cannot be followed": at("number", value=10**12),
    "a number below all": at("number", value=-3),
    "a term beyond all": at("term", value=10**13),
    "what is kept beyond all": at("keep", value=[2, 3, 10**13]),
    "a line of nothing": at("line", value=[0]),
    "a step beyond all": at("step", value=HUGE),
    "a count beyond all": at("counters", "episodes", value=HUGE),
    "a time beyond all": at("commit_timestamp", value=1 << 70),
    "an endless training": at("elapsed_s", value="inf"),
    "an overflowing time": at("elapsed_s", value="0x1p99999"),
    "a metric that is no number": at("metrics", "score", "value", value="many"),
    "a run that is a path": at("run_id", value="../../x"),
    "a run without a name": at("run_id", value=""),
    "a format below all": at("format_version", value=0),
}


@pytest.mark.parametrize("case", CANNOT_BE)
def test_a_manifest_that_says_what_cannot_be_is_passed_over_by_every_reader(case: str, tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    reseal(root / HEAD, CANNOT_BE[case])
    with pytest.raises(CorruptError):
        decode_manifest((root / HEAD).read_bytes(), HEAD)
    problems = {problem.name for problem in milepost.verify(root).problems}
    assert HEAD in problems
    tree: Any = milepost.load(root)
    assert tree["counters"]["step"] == 20, "the one before is loaded"
    restored, state = resume(root)
    assert restored is not None
    assert (restored.generation, state["counters"]["step"]) == (2, 20)


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        (Settlement, "terms/0002.from.json", [{"term": 1}, {"head": 10**13}, {"next": HUGE}, {"head": 9}, {"run_id": "a/b"}]),
        (
            Settlement,
            "terms/0002.from.json",
            [{"unsure": -1}, {"reset": {"run_id": "..", "head": 0, "next": 1, "first_term": 1}}],
        ),
        (Fence, "terms/0002.json", [{"term": 3}, {"term": HUGE}, {"term": 0}, {"pid": 1 << 70}]),
        (Latest, "LATEST", [{"generation": HUGE}, {"generation": 0}, {"step": HUGE}]),
        (Pin, "pins/000002", [{"number": 3}, {"number": HUGE}, {"state": "forever"}]),
        (Summary, HEAD, [{"best_mode": "most"}, {"healthy": 1}, {"keep": {}}]),
    ],
)
def test_other_records_that_say_what_cannot_be_are_damaged(
    kind: type, name: str, changes: list[dict[str, Any]], tmp_path: Path
) -> None:
    root = run_in(tmp_path / "run")
    body = body_of(root / name)
    decode((root / name).read_bytes(), kind, name)
    for change in changes:
        write(root / name, body | change)
        with pytest.raises(CorruptError):
            decode((root / name).read_bytes(), kind, name)
        with _only_ours():
            resume(root)


class _only_ours:  # noqa: N801 - reads like a statement
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, MilepostError)


@pytest.mark.parametrize(
    "body",
    [
        '{"term":2,"term":3}',
        '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
        "{" + '"a":{' * 100_000 + "}" * 100_000 + "}",
        '{"a":NaN}',
        '{"a":1e999}',
        '{"generation":' + "9" * 100_000 + "}",
        '\ufeff{"a":1}',
        '{"a":"\\ud800"}',
        "{}",
        '{"a":1}{"a":2}',
    ],
)
def test_json_that_two_readers_could_read_in_two_ways_is_damaged(body: str) -> None:
    with pytest.raises(CorruptError):
        decode(seal(body.encode()) if body[:1] == "{" else body.encode(), Latest, "LATEST")


def test_a_member_that_a_later_milepost_added_is_skipped_and_one_that_is_there_twice_is_not() -> None:
    name = "LATEST"
    sound = '{"run_id":"r","generation":1,"step":2,"manifest_digest":"d"}'
    assert decode(seal(sound.encode()), Latest, name).generation == 1
    newer = sound[:-1] + ',"tomorrow":{"a":[1.5,true]}}'
    assert decode(seal(newer.encode()), Latest, name).generation == 1
    for twice in (
        sound[:-1] + ',"generation":2}',
        sound[:-1] + ',"tomorrow":1,"tomorrow":1}',
        sound[:-1] + ',"x":{"a":1,"a":2}}',
    ):
        with pytest.raises(CorruptError):
            decode(seal(twice.encode()), Latest, name)


def test_a_summary_and_its_manifest_are_read_alike() -> None:
    """Else what is judged would not be what is loaded."""
    base = Path(__file__).resolve().parents[1] / "old_runs/1" / HEAD
    body = body_of(base)
    for blob in body["blobs"]:
        blob["frames"] = []  # as this format writes it: with nothing unknown or left out, and so read the quick way
    text = json.dumps(body, separators=(",", ":"))
    for twice in (text[:-1] + ',"number":4}', text[:-1] + ',"components":[]}', '{"number":4,' + text[1:]):
        for kind in (Summary, Manifest):
            sealed = seal(twice.encode())
            if kind is Summary and twice.endswith('"components":[]}'):
                assert decode(sealed, kind, HEAD).number == 3  # a summary has none: nothing in it is said twice
                continue
            with pytest.raises(CorruptError):
                decode(sealed, kind, HEAD)


@pytest.mark.parametrize(
    "name",
    [
        "LATEST",
        "milepost.json",
        "progress.json",
        "terms/0002.json",
        "terms/0002.from.json",
        "pins/000002",
        "scrub.json",
        "writer.lock",
    ],
)
def test_a_terabyte_in_the_place_of_a_record_takes_no_memory(name: str, tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    (root / name).touch()
    os.truncate(root / name, 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            read_record(local(root), name)
        with _only_ours():
            milepost.load(root)
        with _only_ours():
            milepost.verify(root)
        assert tracemalloc.get_traced_memory()[1] < (16 << 20) + 8 * layout.most_bytes(name)
    finally:
        tracemalloc.stop()


def test_a_larger_record_than_is_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_RECORD_BYTES", 2000)
    monkeypatch.setitem(manifest._MOST, Manifest, 6000)
    assert encode(Pin("r", 1, "held", "x" * 100))
    with pytest.raises(UsageError) as caught:
        encode(Pin("r", 1, "held", "x" * 3000))
    assert caught.value.kind == "too-large"
    with pytest.raises(MilepostError):
        milepost.save(MemoryStore(), {"extra": {str(i): i for i in range(500)}})


def test_a_hole_of_a_terabyte_in_a_log_is_damage_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.lifecycle.sealed._MOST_BALLAST_BYTES", 32 << 20)
    root = run_in(tmp_path / "run")
    os.truncate(root / "events/0002.jsonl", 1 << 40)
    (root / "ballast").touch()
    os.truncate(root / "ballast", 1 << 40)
    assert {problem.name for problem in milepost.verify(root).problems} == {"events/0002.jsonl", "ballast"}


def test_a_log_of_any_length_is_checked_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_in(tmp_path / "run")
    log = root / "events/0002.jsonl"
    line = log.read_bytes().splitlines(keepends=True)[0]
    log.write_bytes(line * (8_000_000 // len(line)))
    tracemalloc.start()
    try:
        assert milepost.verify(root).ok
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    with log.open("ab") as file:
        file.write(b"x" * 3_000_000)
    assert [problem.name for problem in milepost.verify(root).problems] == ["events/0002.jsonl"]


@pytest.mark.parametrize("term", [999_999_999_999, 999_999_999_998])
def test_a_term_so_high_that_none_can_follow_is_refused_and_not_written_over(term: int, tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    write(root / f"terms/{term}.json", body_of(root / "terms/0002.json") | {"term": term})
    before = sorted(path.name for path in root.rglob("*"))
    if term == layout.HIGHEST:
        with pytest.raises(CorruptError) as caught:
            resume(root)
        assert caught.value.kind == "number-too-high"
        assert sorted({path.name for path in root.rglob("*")} - {"writer.lock"}) == before
    else:
        restored, _ = resume(root)
        assert restored is not None
    assert read(local(root)).head is not None, "readers are not stopped"


def test_a_name_with_more_digits_than_a_number_has_is_nobodys(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    for name in (
        "terms/9999999999999.json",
        "terms/2.json",
        "terms/00002.json",
        "generations/3.json",
        "generations/0000003.json",
    ):
        (root / name).write_bytes(b"{}")
    restored, state = resume(root)
    assert restored is not None
    assert (restored.generation, state["counters"]["step"]) == (3, 30)
    assert (root / "generations/3.json").exists(), "left alone"


def test_a_reset_of_a_billion_terms_is_finished_at_once(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    far = 999_999_000_000
    aside = {"run_id": body_of(root / HEAD)["run_id"], "head": 3, "next": 4, "first_term": 1, "term": far, "at": ""}
    fence = body_of(root / "terms/0002.json")
    write(root / f"terms/{far}.json", fence | {"term": far})
    settled = body_of(root / "terms/0002.from.json")
    write(root / f"terms/{far}.from.json", settled | {"term": far, "head": 0, "next": 4, "run_id": "b" * 32, "reset": aside})
    restored, _ = resume(root)
    assert restored is None, "a reset is a fresh start"
    assert (root / "reset" / aside["run_id"] / HEAD).exists()


def test_a_hundred_thousand_names_that_are_nobodys_are_stepped_over(tmp_path: Path) -> None:
    store = MemoryStore()
    for path in (entry for entry in run_in(tmp_path / "run").rglob("*") if entry.is_file()):
        store.create(path.relative_to(tmp_path / "run").as_posix(), path.read_bytes())
    for index in range(100_000):
        store.create(f"{('generations', 'blobs')[index % 2]}/junk-{index}.json", b"")
    assert read(store).head is not None
    assert milepost.verify(store).ok


def test_live_objects_are_untouched_when_a_tree_is_refused(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    for number in (2, 3):
        # The last component only: all before it is sound, and would have been overwritten by then.
        reseal(root / f"generations/{number:06d}.json", at("components", -1, "tree", value=["dict", [["step", ["array", 77]]]]))
    state = live_state()
    with milepost.CheckpointEngine(local(root), state=state) as engine:
        with pytest.raises(CorruptError) as caught:
            engine.resume()
        assert caught.value.kind == "nothing-valid"
    assert same_state(state, live_state())
    assert state["counters"] == live_state()["counters"]


def test_a_damaged_tree_is_passed_over_for_the_generation_before(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    reseal(root / HEAD, at("components", -1, "tree", value=["dict", [["step", ["int", "nonsense"]]]]))
    restored, state = resume(root)
    assert restored is not None
    assert (restored.generation, state["counters"]["step"]) == (2, 20)


def test_nothing_is_unpickled_unless_its_bytes_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_in(tmp_path / "run")
    index = body_of(root / HEAD)["components"][0]["leaves"][0]
    size = index["stop"] - index["start"]
    change = leaf(kind="opaque", dtype="uint8", shape=[size])
    reseal(root / HEAD, change)
    monkeypatch.setattr("milepost.state.opaque.pickle.loads", lambda _: pytest.fail("it was unpickled"))
    with pytest.raises(UsageError) as caught:
        milepost.load(root)
    assert caught.value.kind == "pickle-not-trusted"
    with pytest.raises(MilepostError):
        resume(root)
    monkeypatch.setattr("milepost.state.opaque.pickle.loads", lambda _: "trusted")
    assert milepost.load(root, trust_pickle=True)


def test_the_lock_file_and_the_claim_say_when_a_name_is_taken_by_what_is_no_record(tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    (root / "terms/0003.json").mkdir()
    with pytest.raises(CorruptError) as caught:
        resume(root)
    assert caught.value.kind == "not-a-file"
    assert not isinstance(caught.value, ConflictError)
