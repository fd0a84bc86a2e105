"""A version as files: whole or not at all, whatever is damaged, full, killed or in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import FakeClock
from milepost.errors import ConflictError, CorruptError, UsageError
from milepost.service.index import Chunks
from milepost.service.writing_out import Part, write_out
from milepost.store.posix import Posix

BYTES = {"weights": bytes(range(256)) * 40, "optimizer": b"\x01" * 5000, "empty": b""}


def part(slot: str, data: bytes, *, damaged: bytes | None = None) -> Part:
    told = data if damaged is None else damaged

    def read_into(start: int, into: memoryview) -> None:
        into[:] = told[start : start + len(into)]

    return Part(slot, Chunks.of(data, 1024), read_into)


PARTS = [part(slot, data) for slot, data in BYTES.items()]


def written(directory: Path, *, force: bool = False, parts: list[Part] = PARTS) -> list[str]:
    return write_out(str(directory), parts, b"{}\n", FakeClock(), force=force)


def held(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


WHOLE = {f"{slot}.safetensors": data for slot, data in BYTES.items()} | {"version.json": b"{}\n"}


def test_a_new_directory_has_all_parts_and_the_record(tmp_path: Path) -> None:
    seen: list[int] = []
    names = write_out(str(tmp_path / "out"), PARTS, b"{}\n", FakeClock(), progress=seen.append)
    assert held(tmp_path / "out") == WHOLE
    assert names == [*(f"{slot}.safetensors" for slot in BYTES), "version.json"]
    assert sum(seen) == sum(map(len, BYTES.values()))
    assert os.listdir(tmp_path) == ["out"]


def test_an_empty_directory_is_filled_where_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = out.stat().st_ino  # somebody may stand in it, or it may be mounted
    written(out)
    assert held(out) == WHOLE
    assert out.stat().st_ino == before


def test_a_directory_that_holds_anything_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("a", "b", "c", "d"):
        (out / name).touch()
    with pytest.raises(UsageError, match=r"there is something in this directory already: .*holds=`a, b, c and 1 more`"):
        written(out)
    assert sorted(held(out)) == ["a", "b", "c", "d"]


def test_with_force_files_of_these_names_are_replaced_and_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes").write_text("mine")
    (out / "weights.safetensors").write_text("old")
    (out / "version.json").write_text("old")
    written(out, force=True)
    assert held(out) == WHOLE | {"notes": b"mine"}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_damaged_part_is_named_and_leaves_all_as_it_was(tmp_path: Path, is_there: bool) -> None:
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
        (out / "version.json").write_text("old")
    bent = bytearray(BYTES["weights"])
    bent[3000] ^= 1
    with pytest.raises(CorruptError, match="slot=`weights` chunk=`2`"):
        written(out, force=True, parts=[*PARTS[1:], part("weights", BYTES["weights"], damaged=bytes(bent))])
    assert os.listdir(tmp_path) == (["out"] if is_there else [])
    if is_there:
        assert held(out) == {"version.json": b"old"}


CHANGES = {"open_new", "write", "fsync", "replace", "rename_new", "unlink", "sync_directory", "link"}
NEW = [part("a", b"new" * 1000), part("b", b"more")]


def killed_at(moment: int, out: Path) -> bool:
    """Write in a process that is killed at its nth call that changes the disk; say whether it came so far."""
    child = os.fork()
    if child == 0:
        try:
            calls = 0

            def perform(_: Posix, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += name in CHANGES
                if calls == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            Posix.perform = perform  # type: ignore[method-assign, assignment]
            write_out(str(out), NEW, b"{}", FakeClock(), force=True)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_a_kill_anywhere_leaves_a_new_directory_whole_or_not_there_and_the_next_try_works(tmp_path: Path) -> None:
    moment, out = 1, tmp_path / "out"
    while killed_at(moment, out):
        assert not out.exists() or len(held(out)) == 3
        if out.exists():
            break
        moment += 1
    written(out, force=True)
    assert held(out).items() >= WHOLE.items()
    assert os.listdir(tmp_path) == ["out"]


def test_a_kill_while_files_are_replaced_leaves_no_record_beside_parts_that_it_does_not_mean(tmp_path: Path) -> None:
    whole, old = {"a.safetensors": b"new" * 1000, "b.safetensors": b"more", "version.json": b"{}"}, {"version.json": b"old"}
    out, moment = tmp_path / "out", 1
    while True:
        out.mkdir()
        (out / "version.json").write_bytes(b"old")
        if not killed_at(moment, out):
            break
        found = {name: data for name, data in held_files(out).items() if name != ".part"}
        assert found in (old, whole) or "version.json" not in found
        written(out, force=True)
        assert held(out).items() >= WHOLE.items()
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
        moment += 1
    assert held(out) == whole


def held_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    def read_into(start: int, into: memoryview) -> None:
        with pytest.raises(ConflictError, match="another process is writing there"):
            written(tmp_path / "out")
        into[:] = b"x" * len(into)

    write_out(str(tmp_path / "out"), [Part("weights", Chunks.of(b"xx"), read_into)], b"{}", FakeClock())
    assert held(tmp_path / "out") == {"weights.safetensors": b"xx", "version.json": b"{}"}


def test_a_link_in_place_of_the_directory_being_made_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (tmp_path / "out.part").symlink_to("elsewhere")
    with pytest.raises(OSError, match="could not make"):
        written(tmp_path / "out")
    assert os.listdir(tmp_path / "elsewhere") == ["precious"]
