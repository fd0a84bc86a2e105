"""Deltas between a real service and clients that do not share its memory: what travels, and what comes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.service import connect
from milepost.service.client.client import Client
from milepost.service.client.committing import Committing, Done
from milepost.service.client.weights import Weights
from milepost.service.deltas import offering, taking
from milepost.service.index import blob_of
from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings
from tests.service.server.process import Process

GIGABIT = 125e6
WORDS = 1 << 19
WAIT_S = 120


@pytest.fixture
def memory_base(tmp_path: Path) -> str:
    base = tmp_path / "memory"
    base.mkdir()
    return str(base)


@contextmanager
def serving(root: Path, memory_base: str, **settings: Any) -> Iterator[Server]:
    with Server(root, ServiceSettings(**settings), run_id="run", memory_base=memory_base) as server:
        yield server


def joined(root: Path, component: str, **options: Any) -> Client:
    """Return a client of another host, as far as the service can tell: bytes come and go over the bulk port."""
    role: Any = "trainer" if component == "trainer" else "sampler"
    return connect(root, component=component, role=role, **{"transport": "bulk", "link_bytes_s": GIGABIT, **options})


def updates(count: int, seed: int = 1, rate: float = 0.018) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return weights as bfloat16 has them, in float32, and after updates that each moved so many by one step of their bits."""
    # Readers of one host share what they fetch, by what is in it: what another test has fetched must not be this.
    mark = np.frombuffer(os.urandom(16), np.uint8)
    rng = np.random.default_rng(seed)
    bits = (rng.standard_normal(WORDS).astype(np.float32).view(np.uint32) >> 16).astype(np.uint32)
    found = []
    for _ in range(count):
        found.append({"w": (bits << 16).view(np.float32).copy(), "b": np.full(7, -0.0, np.float32), "mark": mark})
        where = rng.random(WORDS) < rate
        bits[where] += rng.choice(np.array([1, 0xFFFFFFFF], np.uint32), size=int(where.sum()))
        bits &= 0xFFFF
    return found


def commit(trainer: Client, number: int, versions: Sequence[dict[str, np.ndarray[Any, Any]]], **options: Any) -> Done:
    return trainer.commit(number, versions[number], publish_dtype="bfloat16", **options)


def travelled(server: Server, what: Callable[[], Any], client: Client) -> tuple[Any, int]:
    """Return what came of it, and how many bytes the bulk port has moved meanwhile."""
    before = client.status().counts["bytes.bulk"]
    made = what()
    return made, client.status().counts["bytes.bulk"] - before


def is_same(weights: Weights | None, arrays: dict[str, np.ndarray[Any, Any]]) -> bool:
    assert weights is not None
    return all(weights.array(name, str(array.dtype)).tobytes() == array.tobytes() for name, array in arrays.items())


FULL = WORDS * 2


def test_from_version_to_version_a_fiftieth_travels_down_and_up(tmp_path: Path, memory_base: str) -> None:
    versions = updates(4)
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        for number, arrays in enumerate(versions):
            _, up = travelled(server, partial(commit, trainer, number, versions), trainer)
            weights, down = travelled(server, sampler.fetch, sampler)
            assert is_same(weights, arrays)
            assert weights.at.number == number + 1
            if number == 0:
                assert min(up, down) >= FULL
            else:
                assert max(up, down) * 50 < FULL


def test_what_changed_travels_once_to_all_readers_of_a_host(tmp_path: Path, memory_base: str) -> None:
    versions = updates(2)
    with serving(tmp_path / "run", memory_base) as server, joined(tmp_path / "run", "trainer") as trainer, ExitStack() as stack:
        samplers = [stack.enter_context(joined(tmp_path / "run", f"sampler-{number}")) for number in range(4)]
        commit(trainer, 0, versions)
        held, down = travelled(server, lambda: [sampler.fetch() for sampler in samplers], trainer)
        assert FULL <= down < 3 * FULL  # the first of them is alone, and shares with nobody
        commit(trainer, 1, versions)
        found, down = travelled(server, lambda: [sampler.fetch() for sampler in samplers], trainer)
        assert all(is_same(weights, versions[1]) for weights in found)
        assert down * 50 < FULL
        assert all(is_same(weights, versions[0]) for weights in held)


def test_who_shares_memory_is_never_told(tmp_path: Path, memory_base: str) -> None:
    versions = updates(2)
    with (
        serving(tmp_path / "run", memory_base),
        joined(tmp_path / "run", "trainer", transport="auto") as trainer,
        joined(tmp_path / "run", "sampler", transport="auto") as sampler,
    ):
        for number, arrays in enumerate(versions):
            commit(trainer, number, versions)
            assert is_same(sampler.fetch(), arrays)
        assert trainer.status().counts["bytes.bulk"] == 0
        assert not [
            name for place in os.scandir(memory_base) for _, _, names in os.walk(place) for name in names if ".from-" in name
        ]


@pytest.mark.parametrize(("at_server", "at_client"), [(False, True), (True, False)])
def test_without_deltas_the_whole_travels_each_time(tmp_path: Path, memory_base: str, at_server: bool, at_client: bool) -> None:
    versions = updates(2)
    with (
        serving(tmp_path / "run", memory_base, incremental=at_server) as server,
        joined(tmp_path / "run", "trainer", incremental=at_client) as trainer,
        joined(tmp_path / "run", "sampler", incremental=at_client) as sampler,
    ):
        for number, arrays in enumerate(versions):
            _, up = travelled(server, partial(commit, trainer, number, versions), trainer)
            weights, down = travelled(server, sampler.fetch, sampler)
            assert is_same(weights, arrays)
            assert min(up, down) >= FULL


def test_on_a_fast_link_the_whole_travels(tmp_path: Path, memory_base: str) -> None:
    versions = updates(2)
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer", link_bytes_s=10e9) as trainer,
        joined(tmp_path / "run", "sampler", link_bytes_s=10e9) as sampler,
    ):
        trainer.commit(0, versions[0])
        sampler.fetch()
        _, up = travelled(server, lambda: trainer.commit(1, versions[1]), trainer)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[1])
        assert min(up, down) >= FULL


def test_a_fraction_decides_where_the_operator_has_set_one(tmp_path: Path, memory_base: str) -> None:
    few, many = updates(2, rate=0.018), updates(2, rate=0.5)
    for name, versions in (("few", few), ("many", many)):
        with (
            serving(tmp_path / name, memory_base, incremental_threshold=0.1) as server,
            joined(tmp_path / name, "trainer") as trainer,
            joined(tmp_path / name, "sampler", link_bytes_s=10e9) as sampler,
        ):
            commit(trainer, 0, versions)
            held = sampler.fetch()  # it is kept, here and there, while somebody has it
            assert is_same(held, versions[0])
            commit(trainer, 1, versions)
            weights, down = travelled(server, sampler.fetch, sampler)
            assert is_same(weights, versions[1])
            assert (down * 50 < FULL) if name == "few" else (down > FULL / 2)


def test_a_reader_whose_version_is_gone_has_the_whole_and_is_told_the_next(tmp_path: Path, memory_base: str) -> None:
    versions = updates(6)
    with (
        serving(tmp_path / "run", memory_base, disk_keep_versions=1) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        commit(trainer, 0, versions, durable=True)
        held = sampler.fetch()
        assert held is not None
        held.release()
        for number in (1, 2, 3, 4):
            commit(trainer, number, versions, durable=True)
        until(lambda: not tiers_of(trainer, 1))
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[4])
        assert down >= FULL
        commit(trainer, 5, versions)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[5])
        assert down * 50 < FULL


def until(is_so: Callable[[], bool]) -> None:
    waiting = threading.Event()
    while not is_so():
        assert not waiting.wait(0.02)


def tiers_of(client: Client, number: int) -> tuple[str, ...]:
    """Return where the bytes of a version are."""
    return next((version.tiers for version in client.status().versions if version.weights.at.number == number), ())


def test_a_reader_far_behind_is_told_against_what_it_has_for_as_long_as_that_is_kept(tmp_path: Path, memory_base: str) -> None:
    versions = updates(4)
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        commit(trainer, 0, versions)
        kept = sampler.fetch()
        for number in (1, 2, 3):
            commit(trainer, number, versions)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[3])
        assert is_same(kept, versions[0])
        assert down * 15 < FULL


@pytest.mark.parametrize("has_room", [True, False])
def test_a_base_that_is_on_disk_only_is_read_where_there_is_room_for_it(tmp_path: Path, memory_base: str, has_room: bool) -> None:
    versions = updates(2)
    with (
        serving(tmp_path / "run", memory_base, memory_bytes=(16 if has_room else 4) * FULL) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        commit(trainer, 0, versions, durable=True)
        weights = sampler.fetch()
        assert weights is not None
        weights.release()
        commit(trainer, 1, versions, durable=True)
        until(lambda: tiers_of(trainer, 1) == ("disk",))
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[1])
        assert down * 50 < FULL if has_room else down >= FULL


def test_what_a_reader_has_written_to_is_no_base_and_it_has_the_whole(tmp_path: Path, memory_base: str) -> None:
    versions = updates(2)
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        commit(trainer, 0, versions)
        held = sampler.fetch()  # it is kept, here and there, while somebody has it
        assert is_same(held, versions[0])
        base = sampler._fetches._differences._read
        assert base is not None
        altered = bytearray(base.parts["weights"])
        altered[-1] ^= 1
        base.parts["weights"] = altered  # type: ignore[index]
        commit(trainer, 1, versions)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[1])
        assert down >= FULL


def test_a_delta_that_is_damaged_on_the_way_is_found_and_the_whole_comes(
    tmp_path: Path, memory_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = updates(3)
    fetch_told = taking.make

    def damaged(told: Any, base: Any, into: Any, chunks: Any) -> None:
        hurt = bytearray(told)
        hurt[len(hurt) // 2] ^= 4
        fetch_told(bytes(hurt), base, into, chunks)

    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        commit(trainer, 0, versions)
        held = sampler.fetch()  # it is kept, here and there, while somebody has it
        assert is_same(held, versions[0])
        monkeypatch.setattr(taking, "make", damaged)  # the reader's, and the service's: they are one process here
        _, up = travelled(server, partial(commit, trainer, 1, versions), trainer)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[1])
        assert min(up, down) >= FULL
        monkeypatch.undo()
        _, up = travelled(server, partial(commit, trainer, 2, versions), trainer)
        weights, down = travelled(server, sampler.fetch, sampler)
        assert is_same(weights, versions[2])
        assert max(up, down) * 50 < FULL


def test_while_a_version_is_being_told_the_service_answers_everybody_else(
    tmp_path: Path, memory_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = updates(3)
    came, may_go = threading.Event(), threading.Event()
    tell = offering.tell

    def held(*args: Any) -> Any:
        came.set()
        assert may_go.wait(WAIT_S)
        return tell(*args)

    monkeypatch.setattr(offering, "tell", held)
    with (
        serving(tmp_path / "run", memory_base),
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
        joined(tmp_path / "run", "other") as other,
    ):
        commit(trainer, 0, versions)
        held = sampler.fetch()  # it is kept, here and there, while somebody has it
        assert is_same(held, versions[0])
        commit(trainer, 1, versions)
        found: list[Weights | None] = []
        fetching = threading.Thread(target=lambda: found.append(sampler.fetch()))
        fetching.start()
        try:
            assert came.wait(WAIT_S)
            assert is_same(other.fetch(), versions[1])
            commit(trainer, 2, versions, durable=True)
            assert trainer.status().live is not None
            assert not found
        finally:
            may_go.set()
            fetching.join(WAIT_S)
        assert is_same(found[0], versions[1])


def test_a_service_that_was_started_anew_is_brought_what_differs_once_it_has_the_base(tmp_path: Path, memory_base: str) -> None:
    versions = updates(4)
    root = tmp_path / "run"
    with serving(root, memory_base):
        trainer, sampler = joined(root, "trainer"), joined(root, "sampler")
    with trainer, sampler:
        for first in (0, 2):
            with serving(root, memory_base) as server:
                commit(trainer, first, versions, durable=True)
                assert is_same(sampler.fetch(), versions[first])
                _, up = travelled(server, partial(commit, trainer, first + 1, versions), trainer)
                weights, down = travelled(server, sampler.fetch, sampler)
                assert is_same(weights, versions[first + 1])
                assert max(up, down) * 50 < FULL


def test_parts_that_come_and_go_and_change_their_shape_arrive(tmp_path: Path, memory_base: str) -> None:
    [one, two] = updates(2)
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (one, {"optimizer": {"step": 1, "m": np.arange(5000.0)}}),
        ({**two, "new": np.array([np.nan, -0.0, np.inf], np.float32)}, {"optimizer": {"step": 2, "m": np.arange(5000.0)}}),
        ({"w": two["w"].reshape(2, -1)}, {}),
        ({"w": two["w"].reshape(2, -1)}, {"optimizer": {"step": 3, "m": np.zeros(3)}}),
    ]
    with (
        serving(tmp_path / "run", memory_base),
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        for number, (weights, parts) in enumerate(steps):
            trainer.commit(number, weights, parts=parts)
            fetched = sampler.fetch(parts=("weights", *parts))
            assert fetched is not None
            assert {name: (fetched[name].shape, fetched[name].tobytes()) for name in fetched} == {
                name: (array.shape, array.tobytes()) for name, array in weights.items()
            }
            for name, value in parts.items():
                read = fetched.part(name)
                assert read["step"] == value["step"]
                assert read["m"].tobytes() == value["m"].tobytes()


def test_deltas_take_a_bounded_part_of_the_memory_beside_the_versions(tmp_path: Path, memory_base: str) -> None:
    versions = updates(3)
    with (
        serving(tmp_path / "run", memory_base, memory_bytes=8 * FULL),
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        for number, arrays in enumerate(versions):
            commit(trainer, number, versions)
            weights = sampler.fetch()
            assert is_same(weights, arrays)
        [tier] = [path for path in Path(memory_base).iterdir() if path.is_dir()]
        told = list(tier.rglob("*.from-*"))
        assert told
        assert sum(path.stat().st_size for path in told) <= FULL  # an eighth of what versions may take
        assert {path.parent for path in told} <= {path.parent for path in tier.rglob(blob_of("weights"))}


def test_weights_of_float32_that_are_published_in_bfloat16_are_told_in_little(tmp_path: Path, memory_base: str) -> None:
    rng = np.random.default_rng(7)
    weights = (rng.standard_normal(WORDS) * 0.02).astype(np.float32)
    weights[:4] = np.frombuffer(os.urandom(16), np.uint32)
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        for step in range(3):
            trainer.commit(step, {"w": weights}, publish_dtype="bfloat16")
            fetched, down = travelled(server, sampler.fetch, sampler)
            low = weights.view(np.uint32)
            rounded = ((low + 0x7FFF + ((low >> 16) & 1)) >> 16).astype(np.uint32) << 16
            assert fetched.array("w", "float32").tobytes() == rounded.tobytes()
            assert step == 0 or down * 30 < FULL
            weights = (weights - 1e-6 * np.sign(rng.standard_normal(WORDS)).astype(np.float32)).astype(np.float32)


def test_torchs_dtypes_tied_tensors_and_the_bits_of_odd_floats_arrive(tmp_path: Path, memory_base: str) -> None:
    torch = pytest.importorskip("torch")
    table = torch.arange(40_000, dtype=torch.float32).reshape(200, 200)
    table[0, :4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    first = {
        "tied": table,
        "again": table,
        "half": table.to(torch.bfloat16),
        "eighth": table.to(torch.float8_e4m3fn),
        "complex": table.to(torch.complex64),
        "flags": table > 1,
        "count": torch.tensor(3),
        "none": torch.zeros(0, 7),
        "mark": torch.frombuffer(bytearray(os.urandom(16)), dtype=torch.uint8),
    }
    second = {name: tensor.clone() for name, tensor in first.items() if name != "again"}
    second["tied"][0, 0] = -0.0
    second["tied"].view(torch.int32)[0, 3] ^= 1  # another payload of the same NaN
    second["half"].view(torch.int16)[5] ^= -0x8000
    second["eighth"].view(torch.uint8)[7] ^= 0x80
    second["complex"][3, 3] = complex(float("nan"), -0.0)
    second["flags"][4] = True
    second["again"] = second["tied"]
    with (
        serving(tmp_path / "run", memory_base) as server,
        joined(tmp_path / "run", "trainer") as trainer,
        joined(tmp_path / "run", "sampler") as sampler,
    ):
        trainer.commit(1, first)
        held = sampler.fetch()
        assert held is not None
        _, up = travelled(server, lambda: trainer.commit(2, second), trainer)
        fetched, down = travelled(server, sampler.fetch, sampler)
        for weights, tensors in ((held, first), (fetched, second)):
            found = weights.tensors()
            assert found.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
                assert found[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), name
            assert found["tied"].data_ptr() == found["again"].data_ptr()
        assert max(up, down) * 20 < table.nbytes * 4


def test_a_service_that_is_killed_with_half_a_version_told_has_it_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = updates(3)
    root, shm = tmp_path / "run", tmp_path / "memory"
    arrived = Committing._arrived
    struck: list[list[str]] = []

    def told() -> list[str]:
        return sorted(path.name for path in shm.rglob("*.from-*"))

    with ExitStack() as stack:
        service = stack.enter_context(Process(root, shm, memory_bytes=16 * FULL))
        trainer = stack.enter_context(joined(root, "trainer"))
        sampler = stack.enter_context(joined(root, "sampler"))

        def arrives_late(self: Committing, commit: Any, slot: str, chunks: Any, *how: Any) -> None:
            if how and not struck:
                struck.append(told())
                service.kill()
                stack.enter_context(Process(root, shm, memory_bytes=16 * FULL))
                struck.append(told())
            arrived(self, commit, slot, chunks, *how)

        commit(trainer, 0, versions)
        held = sampler.fetch()
        commit(trainer, 1, versions)
        assert is_same(sampler.fetch(), versions[1])
        monkeypatch.setattr(Committing, "_arrived", arrives_late)
        commit(trainer, 2, versions)
        assert is_same(sampler.fetch(), versions[2])
        assert is_same(held, versions[0])
        assert struck == [["weights.from-1", "weights.from-2"], []]
