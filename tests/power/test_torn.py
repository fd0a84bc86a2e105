"""What a power cut leaves of files that are never synced is told from damage: no operator looks for a bad disk in vain. B8"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode.digest import seal
from milepost.engine import oneshot
from milepost.lifecycle.torn import is_torn
from milepost.store.memory import MemoryStore
from tests.damage.damaged import Trainer, make_run

LINE = seal(b'{"event":"published","generation":3,"reason":"a reason that is longer than any run of zeros"}')
OTHER = seal(b'{"event":"claimed","pid":12}')
LOG = "events/0007.jsonl"


def torn(data: bytes, name: str = LOG) -> bool:
    store = MemoryStore()
    store.replace(name, data)
    return is_torn(store, name)


@given(lines=st.integers(0, 3), cut=st.integers(1, len(LINE)))
def test_a_last_line_that_was_cut_off_is_torn(lines: int, cut: int) -> None:
    assert torn(OTHER * lines + LINE[:-cut])
    assert torn(LINE[:-cut], "LATEST")
    assert torn(LINE[:-cut], "writer.lock")


@given(start=st.integers(0, len(LINE)), size=st.integers(16, 5000))
def test_zeros_where_bytes_never_reached_the_disk_are_torn(start: int, size: int) -> None:
    data = LINE * 30
    assert torn(data[:start] + bytes(size) + data[start + size :])
    assert torn(OTHER + bytes(size))
    assert torn(bytes(size), "LATEST")
    assert torn(bytes(300_000))


@given(byte=st.integers(0, 3 * len(LINE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_damage_and_not_torn(byte: int, bit: int) -> None:
    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[byte % len(data)] ^= 1 << bit
        return bytes(changed)

    assert not torn(flipped(LINE * 3))
    assert not torn(flipped(LINE), "LATEST")
    assert not torn(flipped(LINE), "writer.lock")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (OTHER + LINE[:-20] + b"\n" + OTHER, LOG),  # in the middle, where appends had gone on
        (OTHER + b"\n", LOG),
        (OTHER + b"}", LOG),
        (LINE + b"}", "LATEST"),
        (LINE + LINE, "LATEST"),
        (LINE[:50], "progress.json"),
        (bytes(500), "terms/0001.from.json"),
        (bytes(500), "generations/000001.json"),
        (b"", "milepost.json"),
        (b"x" * 300_000, LOG),
    ],
)
def test_what_no_power_cut_leaves_is_damage(data: bytes, name: str) -> None:
    assert not torn(data, name)


def test_a_torn_file_is_named_apart_and_the_run_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "run"
    make_run(root)
    newest = max((root / "events").iterdir())
    newest.write_bytes(newest.read_bytes()[:-30])
    (root / "LATEST").write_bytes(b"")
    report = oneshot.verify(root)
    assert report.ok
    assert [problem.name for problem in report.torn] == ["LATEST", f"events/{newest.name}"]
    assert "power cut" in str(report.torn[0])
    engine = Trainer(root).engine
    assert engine.resume() is not None
    engine.close()
    assert [problem.name for problem in oneshot.verify(root).torn] == [f"events/{newest.name}"], "LATEST is written anew"


def test_a_latest_that_a_power_cut_took_back_to_a_dropped_generation_misses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "run"
    make_run(root)
    before = (root / "LATEST").read_bytes()
    newest = root / "generations/000006.json"
    newest.write_bytes(b"torn")
    oneshot.drop(root, 6)
    assert not newest.exists()
    assert (root / "LATEST").read_bytes() != before
    (root / "LATEST").write_bytes(before)  # it tells of 6, and was not synced when it was written anew
    assert oneshot.verify(root).ok
    engine = Trainer(root).engine
    restored = engine.resume()
    engine.close()
    assert restored is not None
    assert (restored.generation, restored.skipped) == (5, ())
