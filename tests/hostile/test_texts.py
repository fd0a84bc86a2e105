"""What a file says is shown and logged as what it is: text. It moves no cursor and begins no line of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import milepost
from milepost.cli.main import main
from milepost.errors import ConflictError, MilepostError
from milepost.store.lock import read_holder
from tests.engine.training import local
from tests.hostile.planted import HEAD, at, reseal, resume, run_in, write

EVIL = "\x1b[2J\x1b]0;owned\x07\r\nWARNING milepost: forged\u202e\u2028\x9b31m"
PLANTS: dict[str, Callable[[Any], object]] = {
    "a metric's name": at("metrics", value={EVIL: {"value": "0x1p0", "step": 1}}),
    "the best metric": at("best_by", value=EVIL),
    "a counter": at("counters", value={EVIL: 3}),
    "a reason": at("reason", value=EVIL),
    "a host": at("provenance", "host", value=EVIL),
    "a command": at("provenance", "command", value=EVIL),
    "a version": at("provenance", "versions", value={EVIL: EVIL}),
    "a commit": at("provenance", "git_commit", value=EVIL),
    "a fingerprint": at("fingerprint", value={EVIL: EVIL}),
    "a component's reason": lambda body: body["components"][0].update(exactness="approximate", reason=EVIL),
    "a component's name": lambda body: body["components"][0].update(name=EVIL),
    "a leaf's path": lambda body: body["components"][0]["leaves"][0].update(path=EVIL, digest="0" * 32),
    "a leaf's dtype": lambda body: body["components"][0]["leaves"][0].update(dtype=EVIL),
    "a leaf's kind": lambda body: body["components"][0]["leaves"][0].update(kind=EVIL),
    "a key": lambda body: body["components"][0]["tree"][1].append([EVIL, ["int", "1"]]),
    "a tag": at("components", 0, "tree", value=[EVIL]),
    "what is not finite": lambda body: body.update(healthy=False, nonfinite=[EVIL]),
    "a blob's name": at("blobs", 0, "name", value=EVIL),
    "a run": at("run_id", value=EVIL),
}
VERBS = [
    "ls",
    "ls --all",
    "show",
    "show --leaves --env",
    "show best",
    "verify",
    "diff latest~1",
    "pin latest",
    "rollback 2",
    "gc",
]


def is_tame(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and "\nWARNING milepost: forged" not in text


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_in_a_manifest_steers_the_terminal_or_the_log(
    plant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = run_in(tmp_path / "run")
    reseal(root / HEAD, PLANTS[plant])
    for verb in VERBS:
        name, *rest = verb.split()
        result = CliRunner().invoke(main, [name, str(root), *rest])
        assert is_tame(result.stdout), verb
        assert is_tame(result.stderr), verb
        assert "this is a bug" not in result.stderr, verb
        as_json = CliRunner().invoke(main, [name, str(root), *rest, "--json"])
        assert as_json.output.isascii(), verb
    caplog.set_level(logging.DEBUG)
    for use in (milepost.load, resume):
        try:
            use(root)
        except MilepostError as error:
            said = str(error)
            assert is_tame(said), said
    assert all(is_tame(record.getMessage()) for record in caplog.records)


def test_nothing_in_other_records_does_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = run_in(tmp_path / "run")
    run_id = "01d000000000000401d0000000000005"
    mark = {"run_id": run_id, "number": 3, "kind": "kills-loader", "reason": EVIL, "marked_at": EVIL, "term": 1}
    write(root / "quarantine/000003.json", mark)
    reseal(root / "pins/000002", at("by", value=EVIL))
    reseal(root / "terms/0002.json", at("host", value=EVIL))
    reseal(root / "progress.json", at("written_at", value=EVIL))
    caplog.set_level(logging.DEBUG)
    for verb in VERBS:
        name, *rest = verb.split()
        assert is_tame(CliRunner().invoke(main, [name, str(root), *rest]).output), verb
    restored, _ = resume(root)
    assert restored is not None
    assert caplog.records
    assert all(is_tame(record.getMessage()) for record in caplog.records)


HOLDERS = [
    b"",
    b"{}",
    b"\xff" * 5000,
    b"[" * 4096,
    b'{"pid":' + b"9" * 4000 + b"}",
    b'{"pid":1e999,"host":"h","boot_id":"b","start_time":1,"claimed_ns":1,"claimed_at":"","command":""}',
    b'{"pid":1,"host":"h\\n","boot_id":"b","start_time":1,"claimed_ns":1,"claimed_at":"","command":""}',
    b'{"pid":1,"host":"h","boot_id":"b","start_time":1,"claimed_ns":1,"claimed_at":"","command":"\\u001b[2J"}',
    b'{"pid":1,"host":["h"],"boot_id":"b","start_time":1,"claimed_ns":1,"claimed_at":"","command":""}',
    b'{"pid":1,"host":"h","boot_id":"b","start_time":1,"claimed_ns":Infinity,"claimed_at":"","command":""}',
]


@pytest.mark.parametrize("text", HOLDERS)
def test_a_lock_file_that_says_nonsense_names_nobody(text: bytes, tmp_path: Path) -> None:
    root = run_in(tmp_path / "run")
    with local(root).guard(wait_s=0.0, take_over=False):
        (root / "writer.lock").write_bytes(text)
        assert read_holder(str(root / "writer.lock")) is None
        with pytest.raises(ConflictError) as caught:
            milepost.save(root, {"extra": {}})
        assert caught.value.kind == "held"
        assert is_tame(str(caught.value))


def test_a_fact_and_a_hint_of_an_error_are_one_line_each() -> None:
    error = MilepostError("bad\x1b\n  and more", kind="x", hint=EVIL, name=EVIL)
    assert is_tame(str(error))
    assert str(error).count("\n") == 2


@pytest.mark.parametrize(
    "ref", ["9" * 5000, "g" + "0" * 5000, "latest" + "~1" * 5000, "latest~" + "9" * 5000, "@" + "9" * 5000, "@_", "~1"]
)
def test_a_ref_of_any_length_is_a_ref_or_a_slip_of_the_finger(ref: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["show", str(run_in(tmp_path / "run")), ref])
    assert result.exit_code in (2, 10), result.output
    assert "this is a bug" not in result.stderr
