from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.errors import CorruptError, MismatchError, NotFoundError
from milepost.service.delta.settings import How
from milepost.service.deltas.taking import ToldPart, fetch_told, take_told
from milepost.service.deltas.telling import tell
from milepost.service.index import Chunks, Index, blob_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob, Source
from milepost.service.transports.bulk import BulkTransport
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.folder import Folder
from milepost.service.transports.landing import PrivateLanding
from milepost.service.transports.moving import Mover
from tests.service.deltas.versions import adam_like, tier_of


class Versions:
    """Be two versions of two parts each, the second told against the first, behind a bulk port."""

    def __init__(self, directory: Path) -> None:
        self.parts = {"weights": adam_like(1, words=1 << 16), "optimizer": adam_like(2, words=1 << 15)}
        self.memory, self.indexes = tier_of(
            directory, [{slot: parts[number] for slot, parts in self.parts.items()} for number in range(2)]
        )
        self.server = BulkServer(Folder(str(directory)), "a token")
        self.sources = [Source("bulk", self.server.start())]
        self.mover = Mover([BulkTransport("a token")])

    @property
    def new(self) -> Index:
        return self.indexes[1]

    def told(self, slot: str) -> ToldPart:
        base, new = self.parts[slot]
        blob = Blob(self.new.place, f"{slot}.from-0")
        bytes_ = b"".join(tell(base, new, How()) or [])
        self.memory.new_blob(blob, len(bytes_))
        self.memory.write(blob, 0, bytes_)
        return ToldPart(blob, Chunks.of(bytes_), base, self.new.chunks[slot])


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Versions]:
    made = Versions(tmp_path / "memory")
    yield made
    made.server.close()


def test_a_reader_makes_each_part_of_what_it_was_told_and_only_that_travels(versions: Versions) -> None:
    told = {slot: versions.told(slot) for slot in versions.parts}
    moved, why = fetch_told(versions.mover, versions.sources, told)
    assert why == ""
    for slot, (base, new) in versions.parts.items():
        view = moved.views[Blob(versions.new.place, blob_of(slot))]
        assert view == new
        assert view.readonly
        assert told[slot].base == base
    assert moved.bytes_by == {"bulk": sum(part.told.size_bytes for part in told.values())}
    assert moved.bytes_by["bulk"] * 50 < sum(len(new) for _, new in versions.parts.values())


def test_a_part_that_cannot_be_made_is_left_out_and_the_others_are_there(versions: Versions) -> None:
    told = {slot: versions.told(slot) for slot in versions.parts}
    weights, optimizer = told["weights"], told["optimizer"]
    whole = {Blob(versions.new.place, blob_of("optimizer"))}
    wrong_base = replace(weights, base=versions.parts["weights"][1])
    moved, why = fetch_told(versions.mover, versions.sources, {"weights": wrong_base, "optimizer": optimizer})
    assert moved.views.keys() == whole
    assert "told against another version" in why

    path = versions.memory.path_of(weights.blob)
    with open(path, "r+b") as file:
        file.seek(weights.told.size_bytes // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    moved, why = fetch_told(versions.mover, versions.sources, told)
    assert moved.views.keys() == whole
    assert "weights.from-0" in why

    with open(path, "rb") as file:
        lied = replace(weights, told=Chunks.of(file.read()))
    moved, why = fetch_told(versions.mover, versions.sources, {"weights": lied, "optimizer": optimizer})
    assert moved.views.keys() == whole
    assert "delta is damaged" in why

    versions.memory.drop(weights.blob)
    moved, why = fetch_told(versions.mover, versions.sources, told)
    assert moved.views.keys() == whole
    versions.server.close()
    moved, why = fetch_told(versions.mover, versions.sources, told)
    assert not moved.views


def test_a_delta_that_says_it_is_larger_than_its_part_is_not_asked_for(versions: Versions) -> None:
    told = versions.told("weights")
    bomb = Chunks(1 << 40, b"\0" * 16 * (1 << 18))
    moved, _ = fetch_told(versions.mover, versions.sources, {"weights": replace(told, told=bomb)})
    assert not moved.views
    assert not moved.bytes_by


def test_a_landing_that_others_have_begun_is_not_written_over_and_one_that_they_have_finished_is_taken(
    versions: Versions,
) -> None:
    told = versions.told("weights")
    new = versions.parts["weights"][1]
    small = Chunks.of(new, 1 << 12)
    part = replace(told, chunks=small)

    def begun(chunks: Chunks) -> PrivateLanding:
        landing = PrivateLanding(chunks)
        landing.memory[: 1 << 12] = new[: 1 << 12]
        landing.landed(0)
        return landing

    assert not fetch_told(versions.mover, versions.sources, {"weights": part}, land=begun)[0].views

    def finished(chunks: Chunks) -> PrivateLanding:
        landing = PrivateLanding(chunks)
        landing.memory[:] = new
        for number in range(len(chunks)):
            landing.landed(number)
        return landing

    moved, _ = fetch_told(versions.mover, versions.sources, {"weights": part}, land=finished)
    assert list(moved.views.values()) == [new]
    assert not moved.bytes_by


def brought(memory: MemoryTier, place: str, told: bytes) -> Blob:
    blob = Blob(place, "weights.from-0")
    memory.new_blob(blob, len(told))
    memory.write(blob, 0, told)
    return blob


def test_a_service_makes_the_part_that_it_was_told_and_lets_go_of_the_rest(tmp_path: Path) -> None:
    base, new = adam_like(3, words=1 << 16)
    memory, _ = tier_of(tmp_path / "memory", [])
    told = b"".join(tell(base, new, How()) or [])
    part = Blob("coming", "weights.safetensors")
    take_told(memory, brought(memory, "coming", told), base, part, Chunks.of(new))
    assert memory.map(part) == new
    assert memory.names("coming") == [part.name]


def test_a_service_that_is_told_nonsense_keeps_nothing_of_it(tmp_path: Path) -> None:
    base, new = adam_like(4, words=1 << 16)
    memory, _ = tier_of(tmp_path / "memory", [])
    told = b"".join(tell(base, new, How()) or [])
    part = Blob("coming", "weights.safetensors")
    for said, against, error in ((told, new, MismatchError), (told[:-1], base, CorruptError), (b"", base, CorruptError)):
        blob = brought(memory, "coming", said)
        with pytest.raises(error):
            take_told(memory, blob, against, part, Chunks.of(new))
        assert memory.names("coming") == []
    with pytest.raises(NotFoundError):
        take_told(memory, Blob("coming", "weights.from-0"), base, part, Chunks.of(new))
