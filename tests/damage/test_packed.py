"""Damage in a compressed blob is found wherever it is, and named by what its frame holds: components, of a log the rows. B8"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import safetensors
import zstandard

from milepost.clock import FakeClock
from milepost.lifecycle.blobs import Blobs, Contents
from milepost.lifecycle.recover import choose
from milepost.lifecycle.scrub import Scrub
from milepost.lifecycle.verify import Problem, verify
from milepost.publish.manifest import decode_manifest, encode
from milepost.publish.view import read
from milepost.records import BlobRecord, Manifest
from milepost.testing.faults import FaultStore
from tests.damage.damaged import flip
from tests.damage.packed import pieces, save_packed
from tests.engine.training import local

ROWS = list(pieces(3))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Manifest, BlobRecord]:
    manifest = save_packed(tmp_path / "run")
    (packed,) = (blob for blob in manifest.blobs if blob.frames)
    return tmp_path / "run", manifest, packed


def frames_of(blob: BlobRecord) -> list[tuple[int, int]]:
    """Return the bytes [start, stop) of the file that each frame takes: the header's, one for each piece, one for the rest."""
    return list(pairwise(accumulate((stored for _, stored in blob.frames), initial=0)))


def test_a_packed_generation_is_sound_and_its_file_is_plain_safetensors_within_zstd(
    saved: tuple[Path, Manifest, BlobRecord],
) -> None:
    root, manifest, packed = saved
    assert verify(local(root)).ok
    assert packed.name.endswith(".replay.0-600.safetensors.zst")
    assert decode_manifest(encode(manifest), "generations/000001.json") == manifest
    assert len(packed.frames) == 1 + 3 + 1
    data = (root / packed.name).read_bytes()
    assert len(data) == packed.size_bytes < packed.raw_bytes
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        raw = reader.read()
    assert len(raw) == packed.raw_bytes
    tensors = {name: bytes(info["data"]) for name, info in safetensors.deserialize(raw)}
    assert tensors == pieces(3) | {"sampler/order": b"abcd" * 10, "counters/seen": b"efgh" * 10}


def test_a_bit_flipped_in_any_byte_is_found_and_named_by_what_its_frame_holds(saved: tuple[Path, Manifest, BlobRecord]) -> None:
    root, _, packed = saved
    file = root / packed.name
    sound = file.read_bytes()
    within = [((), ()), *((("replay",), (rows,)) for rows in ROWS), (("sampler", "counters"), ())]
    missed = 0
    for (start, stop), (components, rows) in zip(frames_of(packed), within, strict=True):
        for byte in range(start, stop):
            flip(file, byte, byte % 8)
            (problem,) = verify(local(root)).problems
            assert problem.name == packed.name
            hit = (problem.components, problem.rows)
            # A bit that zstd has no use for, in the last frame's reserved ones, say, harms nobody: the file's digest tells.
            missed += hit != (components, rows)
            assert hit in ((components, rows), ((), ())) or (rows == () and set(problem.components) <= set(components)), byte
            file.write_bytes(sound)
    assert missed <= 2 * len(within)
    assert verify(local(root)).ok


@pytest.mark.parametrize("frame", range(5))
def test_a_file_that_ends_early_still_gives_what_lies_before(saved: tuple[Path, Manifest, BlobRecord], frame: int) -> None:
    root, _, packed = saved
    start, stop = frames_of(packed)[frame]
    file = root / packed.name
    file.write_bytes(file.read_bytes()[: (start + stop) // 2])
    (problem,) = verify(local(root)).problems
    assert "shorter" in problem.problem
    assert problem.rows == tuple(ROWS[max(frame - 1, 0) :])


def test_frames_that_are_sound_but_another_s_are_damage(saved: tuple[Path, Manifest, BlobRecord]) -> None:
    root, _, packed = saved
    file = root / packed.name
    data, spans = file.read_bytes(), frames_of(packed)
    (a, b), (c, d) = spans[1], spans[2]
    assert b - a == d - c
    file.write_bytes(data[:a] + data[c:d] + data[a:b] + data[d:])
    (problem,) = verify(local(root)).problems
    assert problem.rows == (ROWS[0], ROWS[1])


def test_damage_is_told_by_rows_wherever_it_is_told(
    saved: tuple[Path, Manifest, BlobRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    from milepost.cli.main import main

    root, _, packed = saved
    start, stop = frames_of(packed)[2]
    flip(root / packed.name, (start + stop) // 2, 0)
    due = "(replay; rows replay.observations[200:400])"
    damage = choose(local(root), read(local(root)), spare=lambda name: name != "policy").damage
    assert due in str(damage)
    for verb in ("verify", "scrub"):
        with pytest.raises(SystemExit) as ended:
            main([verb, str(root)])
        assert ended.value.code == 13
        assert due in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["verify", str(root), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["problems"][0]["rows"] == ["replay.observations[200:400]"]
    (problem,) = Scrub(local(root), FakeClock()).run(lambda _: None).problems
    assert problem.rows == ("replay.observations[200:400]",)


def test_of_many_damaged_rows_a_line_names_a_few_and_counts_the_others() -> None:
    rows = tuple(f"replay.observations[{n}:{n + 1}]" for n in range(20))
    told = str(Problem("blobs/x", "it is gone", 1, ("replay",), rows))
    assert told.count("observations") == 8
    assert "and 12 more" in told


def test_damage_that_passes_on_a_second_read_is_none_in_a_frame_either(saved: tuple[Path, Manifest, BlobRecord]) -> None:
    root, manifest, packed = saved
    leaves = {leaf.path: leaf for component in manifest.components for leaf in component.leaves}

    class Flaky(FaultStore):
        at = -1

        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if name == packed.name and start <= self.at < start + got:
                into[self.at - start] ^= 1
                self.at = -1
            return got

    # Some of these flips cannot be unpacked, others give other bytes: neither may be what the second look finds.
    for path, frame in ((ROWS[0], 1), ("sampler/order", 4)):
        for byte in range(*frames_of(packed)[frame]):
            store = Flaky(local(root))
            store.at = byte
            assert Blobs(store, full=True).is_sound(manifest, leaves[path])
            assert store.at == -1


def test_what_rots_after_a_frame_was_unpacked_is_seen_by_the_next_who_reads(saved: tuple[Path, Manifest, BlobRecord]) -> None:
    root, manifest, packed = saved
    order = next(leaf for component in manifest.components for leaf in component.leaves if leaf.path == "sampler/order")
    store = local(root)
    assert Blobs(store, full=True).is_sound(manifest, order)
    contents, into = Contents(store), memoryview(bytearray(order.size_bytes))
    contents.read_into(packed, order.start, into)
    assert bytes(into) == b"abcd" * 10
    flip(root / packed.name, frames_of(packed)[4][1] - 12, 4)
    assert not Blobs(store, full=True).is_sound(manifest, order)
