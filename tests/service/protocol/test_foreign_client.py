"""A client that knows only docs/service-protocol.md, and the page itself: it has to say what the service does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from milepost.service import connect, wire
from milepost.service.proto import service_pb2 as pb
from milepost.service.server import shelf
from milepost.service.server.serving import Server
from milepost.service.transports import bulk_frames
from tests.cli.serving import forget
from tests.service.protocol.foreign import Foreign, RefusedError, is_whole, safetensors, shard_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "service-protocol.md").read_text(encoding="utf-8")
WEIGHTS = safetensors("w", bytes(range(256)) * 40)
MOMENTS = safetensors("m", b"\x07" * 3000)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with Server(tmp_path):
        yield tmp_path
    forget(tmp_path)


@pytest.fixture
def trainer(root: Path) -> Iterator[Foreign]:
    with Foreign(root, "trainer", "trainer", "a1") as foreign:
        yield foreign


def test_it_imports_nothing_of_milepost_but_what_protoc_has_made() -> None:
    tree = ast.parse(Path(__file__).with_name("foreign.py").read_text())
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in named if name.startswith("milepost")}
    assert ours == {"milepost.service.proto", "milepost.service.proto.service_pb2_grpc"}


def test_what_it_commits_over_two_connections_milepost_reads(root: Path, trainer: Foreign) -> None:
    parts = {"weights": WEIGHTS, "optimizer": MOMENTS}
    bring = trainer.begin("k1", 100, parts)
    assert sorted(bring.slots) == sorted(parts)
    with trainer.bulk(bring.sinks) as one, trainer.bulk(bring.sinks) as other:
        half = len(WEIGHTS) // 2
        other.put(bring.place, "weights.safetensors", half, WEIGHTS[half:])
        one.put(bring.place, "weights.safetensors", 0, WEIGHTS[:half])
        one.put(bring.place, "optimizer.safetensors", 0, MOMENTS)
    for slot, data in parts.items():
        trainer.arrived("k1", slot, data)
    done = trainer.finish("k1", durable=True)
    assert (done.durable, done.weights.step) == (True, 100)
    with connect(root, component="sampler", role="sampler") as sampler:
        weights = sampler.fetch()
        assert weights is not None
        assert (weights["w"] == np.frombuffer(bytes(range(256)) * 40, np.uint8)).all()


@pytest.mark.parametrize("way", ["bulk", "shm", "files", "grpc"])
def test_what_milepost_commits_it_reads_by_every_way(root: Path, way: str) -> None:
    array = np.arange(100_000, dtype=np.float32)
    with connect(root, component="trainer", role="trainer") as ours:
        ours.commit(7, {"w": array}, durable=True)
    with Foreign(root, "sampler", "sampler", "b1") as reader:
        take = reader.take()
        (shard,) = take.weights.shards
        data = read_by(way, reader, take, shard)
        assert is_whole(shard, data)
        assert (load(data)["w"] == array).all()
        reader.call("Release", pb.ReleaseRequest(caller=reader.caller, at=take.weights.at))


def read_by(way: str, reader: Foreign, take: pb.Take, shard: pb.Shard) -> bytes:
    name, place = f"{shard.slot}.safetensors", take.weights.place
    (source,) = [each for each in take.sources if each.transport == way]
    if way in ("shm", "files"):
        return (Path(source.address) / place / name).read_bytes()
    if way == "grpc":
        asked = pb.DownloadRequest(caller=reader.caller, place=place, blob=name, size_bytes=shard.size_bytes)
        return b"".join(piece.data for piece in reader.call("Download", asked))
    with reader.bulk(take.sources) as bulk:
        return bulk.get(place, name, 0, 1000) + bulk.get(place, name, 1000, shard.size_bytes - 1000)


def test_all_of_a_commit_may_be_said_twice(root: Path, trainer: Foreign) -> None:
    for _ in range(2):
        bring = trainer.begin("k1", 100, {"weights": WEIGHTS})
        if bring.slots:
            for _ in range(2):
                with trainer.bulk(bring.sinks) as bulk:
                    bulk.put(bring.place, "weights.safetensors", 0, WEIGHTS)
        for _ in range(2):
            trainer.arrived("k1", "weights", WEIGHTS)
        assert trainer.finish("k1").weights.at.number == 1
    assert len(trainer.call("Status", pb.StatusRequest()).versions) == 1


def test_bytes_that_are_not_those_that_were_meant_are_named_and_only_they_come_again(trainer: Foreign) -> None:
    bring = trainer.begin("k1", 100, {"weights": WEIGHTS})
    bent = bytearray(WEIGHTS)
    bent[3000] ^= 1
    with trainer.bulk(bring.sinks) as bulk:
        bulk.put(bring.place, "weights.safetensors", 0, bytes(bent))
        with pytest.raises(RefusedError) as refused:
            trainer.arrived("k1", "weights", WEIGHTS)
        assert (refused.value.refused.kind, refused.value.refused.facts["chunks"]) == ("damaged-shard", "2")
        bulk.put(bring.place, "weights.safetensors", 2048, WEIGHTS[2048:3072])
    trainer.arrived("k1", "weights", WEIGHTS)
    assert trainer.finish("k1").weights.at.number == 1


def test_another_start_takes_its_place_and_goes_on_with_what_it_had_not_finished(root: Path, trainer: Foreign) -> None:
    trainer.begin("k1", 100, {"weights": WEIGHTS})
    with Foreign(root, "trainer", "trainer", "a2") as later:
        with pytest.raises(RefusedError, match="superseded"):
            trainer.begin("k2", 101, {"weights": WEIGHTS})
        bring = later.begin("k1", 100, {"weights": WEIGHTS})
        with later.bulk(bring.sinks) as bulk:
            bulk.put(bring.place, "weights.safetensors", 0, WEIGHTS)
        later.arrived("k1", "weights", WEIGHTS)
        assert later.finish("k1").weights.incarnation == "a2"


def test_a_refusal_of_the_bulk_port_is_said_and_the_connection_goes_on(root: Path, trainer: Foreign) -> None:
    bring = trainer.begin("k1", 100, {"weights": WEIGHTS})
    with trainer.bulk(bring.sinks) as bulk:
        for place, name, start in (
            (bring.place, "critic.safetensors", 0),
            (bring.place, "weights.safetensors", 1),
            ("000000000001-0000000000000000", "weights.safetensors", 0),
            ("..", "token", 0),
        ):
            with pytest.raises(RefusedError):
                bulk.put(place, name, start, WEIGHTS)
        with pytest.raises(RefusedError, match="no-such-blob"):
            bulk.get(bring.place, "weights.safetensors", 0, 1)  # of a version that nobody may see yet
        bulk.put(bring.place, "weights.safetensors", 0, WEIGHTS)
    trainer.arrived("k1", "weights", WEIGHTS)


def test_a_version_of_another_chunk_size_is_told_as_it_was_brought(root: Path, trainer: Foreign) -> None:
    bring = trainer.begin("k1", 100, {"weights": WEIGHTS})
    with trainer.bulk(bring.sinks) as bulk:
        bulk.put(bring.place, "weights.safetensors", 0, WEIGHTS)
    trainer.arrived("k1", "weights", WEIGHTS)
    trainer.finish("k1")
    with Foreign(root, "sampler", "sampler", "b1") as reader:
        assert [*reader.take().weights.shards] == [shard_of("weights", WEIGHTS)]


# The page.


def kinds_in_code() -> set[str]:
    """Return every kind that the core or the server refuses with."""
    found = set()
    for path in [*(ROOT / "src/milepost/service/core").glob("*.py"), *(ROOT / "src/milepost/service/server").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                at = {"Refused": 0, "refuse": 0}.get(name)
                words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if at is not None and words:
                    found.add(words[0])
    return found


def test_the_page_tells_every_kind_of_refusal_and_no_other() -> None:
    rows = PAGE[PAGE.index("| kind |") : PAGE.index("Kinds are added")].strip().splitlines()[2:]
    told = {kind for row in rows for kind in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    # These are errors of the house, which travel as refusals.
    raised = {"bad-message", "no-such-blob", "not-missing", "damaged-delta", "wrong-base", "no-such-base"}
    # And this one does not travel: a status without a refusal says that nothing is known.
    assert told == kinds_in_code() - {"in-doubt"} | raised


def test_the_page_tells_the_bounds_that_hold() -> None:
    table = PAGE[PAGE.index("## Bounds") :]
    numbers = dict(re.findall(r"^\| (\w[^|]*?) \| ([\d,]+(?: [KM]iB)?)[^|]*\|$", table, re.MULTILINE))
    units = {"KiB": 1 << 10, "MiB": 1 << 20}

    def bound(name: str) -> int:
        number, _, unit = numbers[name].partition(" ")
        return int(number.replace(",", "")) * units.get(unit, 1)

    assert bound("a message") == wire.MAX_MESSAGE_BYTES
    assert bound("names of components, incarnations and keys") == wire.MAX_NAME
    assert bound("slots of a version") == wire.MAX_SLOTS
    assert bound("a chunk") == wire.MAX_CHUNK_BYTES
    assert bound("a piece of a stream") == wire.MAX_PIECE_BYTES
    assert bound("connections to the bulk port") == shelf._CONNECTIONS
    assert f"of a PUT at most {bulk_frames.MOST_PUT_BYTES >> 20} MiB" in PAGE
    assert f"at most {bulk_frames.MOST_NAME_BYTES}" in PAGE
    assert f"at most {bulk_frames.MOST_TOKEN_BYTES}" in PAGE
    assert f"at most {bulk_frames.MOST_TEXT_BYTES}" in PAGE


def test_the_page_names_every_call_of_the_protocol() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Checkpoints"].methods}
    assert {call for call in calls if f"`{call}" not in PAGE} == set()
