"""What DCP's own writer has left in a directory loads on any number of ranks; what it says of itself is not believed. A11"""

from __future__ import annotations

import dataclasses
import os
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties

import milepost
from milepost.errors import CorruptError, MilepostError, UsageError
from milepost.pytorch import dcp
from milepost.pytorch.importing import dcp_source
from milepost.pytorch.importing.base import Imported, Options
from milepost.pytorch.importing.dcp_directory import DcpDirectory
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import blank, differences, sharded, whole
from tests.pytorch.importing.test_areal import listed


def write(_rank: int, place: str) -> None:
    """Save with DCP's own writer: a state of every dtype, sharded in every way."""
    state = sharded(5) if dist.is_initialized() else whole(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.save(state, checkpoint_id=place, no_dist=not dist.is_initialized())


def write_and_load(rank: int, place: str, root: str) -> list[str]:
    write(rank, f"{place}-2")
    if rank == 0:
        bring(Path(f"{place}-2"), root)
        write_one(f"{place}-1")
        bring(Path(f"{place}-1"), f"{root}-1")
    dist.barrier()
    found = []
    for path in (root, f"{root}-1"):
        state = blank(sharded(0))
        if path != root:
            state["model"].pop("copied")
        restored = dcp.load(state, path)
        wanted = sharded(5)
        wanted["model"] = {name: wanted["model"][name] for name in state["model"]}
        found += [*differences(locals_of(state), locals_of(wanted)), *([] if restored.step == 1000 else [str(restored.step)])]
    return found


def write_one(place: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.save(whole(5), checkpoint_id=place, no_dist=True)


def locals_of(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: locals_of(value) for key, value in state.items()}
    if isinstance(state, list):
        return [locals_of(value) for value in state]
    return state.to_local() if hasattr(state, "to_local") else state


def bring(path: Path, root: Path | str, **options: Any) -> Imported:
    return DcpDirectory().bring(path, str(root), Options(**{"step": 1000, **options}))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_one(str(tmp_path / "saved"))
    return tmp_path / "saved"


class TestLoading:
    def test_two_ranks_load_what_two_and_one_have_saved(self, tmp_path: Path) -> None:
        assert run(2, write_and_load, tmp_path, str(tmp_path / "saved"), str(tmp_path / "run")) == [[], []]
        state = blank(whole(0))
        dcp.load(state, tmp_path / "run", no_dist=True)
        assert differences(state, whole(5)) == []

    def test_one_process_reads_it_without_dcp(self, place: Path, tmp_path: Path) -> None:
        imported = bring(place, tmp_path / "run")
        assert imported.components == ("policy", "optimizer", "extra")
        policy = milepost.load(tmp_path / "run", parts=["policy"])["policy"]  # type: ignore[index]
        assert torch.equal(policy["model.w.1"], whole(5)["model"]["w.1"])
        assert milepost.verify(tmp_path / "run").ok

    def test_it_is_said_how_its_bytes_were_verified(self, place: Path, tmp_path: Path) -> None:
        assert "compared with the CRC-32" in bring(place, tmp_path / "run").left_out[0]
        with without_checksums():
            write_one(str(tmp_path / "unchecked"))
        assert "are not verified by their writer" in bring(tmp_path / "unchecked", tmp_path / "other").left_out[0]

    @pytest.mark.parametrize(("name", "step"), [("step-500", 500), ("global_step_40", 40), ("1000", 1000), ("last", 0)])
    def test_the_step_is_the_number_that_the_name_ends_in(self, place: Path, tmp_path: Path, name: str, step: int) -> None:
        moved = place.rename(tmp_path / name)
        assert DcpDirectory().bring(moved, str(tmp_path / "run"), Options(dry_run=True)).step == step

    def test_keys_can_be_told_to_be_components(self, place: Path, tmp_path: Path) -> None:
        imported = bring(place, tmp_path / "run", components={"values": "default/counters"})
        assert "default/counters" in imported.components
        with pytest.raises(UsageError) as caught:
            bring(place, tmp_path / "other", components={"actor": "policy"})
        assert (caught.value.kind, "its keys are model, optim" in caught.value.hint) == ("no-such-key", True)

    def test_tensors_are_read_one_at_a_time_when_they_are_written(
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alive: list[Any] = []
        most = 0

        original = dcp_source.read_torch

        def counted(*given: Any, **named: Any) -> Any:
            nonlocal most
            value = original(*given, **named)
            if isinstance(value, torch.Tensor):
                alive.append(weakref.ref(value.untyped_storage()))
                most = max(most, sum(one() is not None for one in alive))
            return value

        monkeypatch.setattr(dcp_source, "read_torch", counted)
        bring(place, tmp_path / "dry", dry_run=True)
        assert not alive
        bring(place, tmp_path / "run")
        assert len(alive) > 14
        assert most <= 4  # the writer digests one while it writes another

    def test_a_directory_of_safetensors_comes_too(self, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        state = {"model.w": torch.arange(6.0).reshape(2, 3), "model.b": torch.ones(2, dtype=torch.bfloat16)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = torch_dcp.HuggingFaceStorageWriter(str(tmp_path / "saved"), save_distributed=True)
            torch_dcp.save(state, storage_writer=writer, no_dist=True)
        assert DcpDirectory().recognise(tmp_path / "saved")
        bring(tmp_path / "saved", tmp_path / "run")
        found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(found, tmp_path / "run", no_dist=True)
        assert differences(found, state) == []
        (shard,) = (tmp_path / "saved").glob("*.safetensors")
        for data in (shard.read_bytes()[:-1], b"\xff" * 8 + shard.read_bytes()[8:], shard.read_bytes()[:6], b""):
            shard.write_bytes(data)
            refused(tmp_path / "saved", tmp_path / "other")


class TestValues:
    def save(self, place: Path, value: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_dcp.save({"it": value}, checkpoint_id=place, no_dist=True)

    def test_arrays_and_generators_states_come_as_data(self, tmp_path: Path) -> None:
        value = ("MT19937", np.random.RandomState(1).get_state()[1], np.float32(0.5), {1: b"x"})
        self.save(tmp_path / "saved", value)
        bring(tmp_path / "saved", tmp_path / "run")
        state = {"it": None}
        dcp.load(state, tmp_path / "run", no_dist=True)
        found: Any = state["it"]
        assert (found[0], found[1].tobytes(), found[2:]) == (value[0], value[1].tobytes(), value[2:])

    def test_an_object_is_refused_by_name_and_comes_as_a_pickle_if_it_is_trusted(self, tmp_path: Path) -> None:
        self.save(tmp_path / "saved", Strange(3))
        with pytest.raises(UsageError) as caught:
            bring(tmp_path / "saved", tmp_path / "run")
        assert caught.value.kind == "pickle-not-trusted"
        assert "Strange" in str(caught.value.facts["calls"])
        bring(tmp_path / "saved", tmp_path / "run", trust_pickle=True)
        state = {"it": None}
        with pytest.raises(UsageError):
            dcp.load(state, tmp_path / "run", no_dist=True)
        dcp.load(state, tmp_path / "run", no_dist=True, trust_pickle=True)
        assert state["it"] == Strange(3)


@dataclasses.dataclass
class Strange:
    number: int


def refused(path: Path, root: Path, kind: str = "damaged-source", error: type[MilepostError] = CorruptError) -> str:
    before = listed(path)
    with pytest.raises(error) as caught:
        bring(path, root)
    assert caught.value.kind == kind
    assert caught.value.hint
    assert not (root / "generations").exists() or not list((root / "generations").iterdir())
    assert listed(path) == before
    return str(caught.value)


def bend(path: Path, change: Callable[[Metadata], object]) -> None:
    metadata: Metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def _stored(metadata: Metadata, **changes: object) -> None:
    index = next(index for index in metadata.storage_data if index.fqn == "model.w.0")
    metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **changes)


def _tensor(metadata: Metadata, **changes: object) -> None:
    entry = metadata.state_dict_metadata["model.w.0"]
    metadata.state_dict_metadata["model.w.0"] = dataclasses.replace(entry, **changes)


def _all_at_one_place(metadata: Metadata) -> None:
    first = next(place for index, place in metadata.storage_data.items() if index.fqn == "model.w.0")
    metadata.storage_data = dict.fromkeys(metadata.storage_data, first)


def _chunks(*chunks: tuple[tuple[int, int], tuple[int, int]]) -> list[ChunkStorageMetadata]:
    return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]


def _in_chunks(*chunks: tuple[tuple[int, int], tuple[int, int]]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        (index,) = (index for index in metadata.storage_data if index.fqn == "model.w.0")
        place = metadata.storage_data.pop(index)
        for offsets, _ in chunks:
            metadata.storage_data[dataclasses.replace(index, offset=torch.Size(offsets))] = place
        _tensor(metadata, chunks=_chunks(*chunks))

    return change


LIES: dict[str, tuple[Callable[[Metadata], object], str]] = {
    "a file above": (lambda m: _stored(m, relative_path="../saved/__0_0.distcp"), "outside of its directory"),
    "an absolute file": (lambda m: _stored(m, relative_path="/etc/passwd"), "outside of its directory"),
    "a file through a link": (lambda m: _stored(m, relative_path="link/__0_0.distcp"), "is a link"),
    "a file that is a link": (lambda m: _stored(m, relative_path="linked"), "a link, or no file"),
    "a pipe": (lambda m: _stored(m, relative_path="pipe"), "a link, or no file"),
    "a file with a zero in its name": (lambda m: _stored(m, relative_path="a\0b"), "outside of its directory"),
    "a file that is not there": (lambda m: _stored(m, relative_path="__9_9.distcp"), "is missing"),
    "a name that is no text": (lambda m: _stored(m, relative_path=3), "not what DCP writes"),
    "bytes beyond the file": (lambda m: _stored(m, offset=1 << 40), "shorter than what is said"),
    "a length beyond the file": (lambda m: _stored(m, length=1 << 61), "shorter than what is said"),
    "a negative offset": (lambda m: _stored(m, offset=-5), "not what DCP writes"),
    "an offset that is no integer": (lambda m: _stored(m, offset=1e9), "not what DCP writes"),
    "a place of fewer bytes": (lambda m: _stored(m, length=20), "larger than its bytes"),
    "another place": (lambda m: _stored(m, offset=1), ""),
    "all at one place": (_all_at_one_place, "more is said to be in a file"),
    "an absurd size": (
        lambda m: _tensor(m, size=torch.Size((1 << 40, 1 << 20)), chunks=_chunks(((0, 0), (1 << 40, 1 << 20)))),
        "larger than its bytes",
    ),
    "a part that is missing": (_in_chunks(((0, 0), (3, 5)), ((4, 0), (3, 5))), ""),
    "parts that overlap": (_in_chunks(((0, 0), (4, 5)), ((2, 0), (3, 5))), ""),
    "a part outside": (_in_chunks(((0, 0), (3, 5)), ((5, 0), (4, 5))), ""),
    "no parts": (lambda m: _tensor(m, chunks=[]), "not all of it"),
    "another shape": (
        lambda m: _tensor(m, size=torch.Size((5, 7)), chunks=_chunks(((0, 0), (5, 7)))),
        "not what it is said to be",
    ),
    "another dtype": (lambda m: _tensor(m, properties=TensorProperties(torch.int32)), "not what it is said to be"),
    "a tensor where a value is": (
        lambda m: m.state_dict_metadata.update({"values.lr": m.state_dict_metadata["model.w.0"]}),
        "not what DCP writes",
    ),
    "no metadata at all": (lambda m: vars(m).clear(), "not what DCP writes"),
    "a list for its entries": (lambda m: setattr(m, "state_dict_metadata", [1]), "not what DCP writes"),
}


@contextmanager
def without_checksums() -> Iterator[None]:
    """Let torch leave checksums out, as those do who find that they take too long."""
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(True)


class TestHostile:
    """Whatever it says: one clear error, nothing written, nothing read from elsewhere, the source as it was."""

    @pytest.mark.parametrize("name", LIES)
    def test_what_dcp_says_is_not_believed(self, place: Path, tmp_path: Path, name: str) -> None:
        (place / "link").symlink_to(place)
        (place / "linked").symlink_to("__0_0.distcp")
        os.mkfifo(place / "pipe")
        change, told = LIES[name]
        bend(place, change)
        assert told in refused(place, tmp_path / "run")

    def test_metadata_that_run_a_command_are_refused_and_run_nothing_even_if_pickles_are_trusted(
        self, place: Path, tmp_path: Path
    ) -> None:
        class Command:
            def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
                return os.system, (f"touch {tmp_path / 'ran'}",)

        bend(place, lambda metadata: setattr(metadata, "planner_data", {"model.w.0": Command()}))
        for trust in (False, True):
            with pytest.raises(UsageError) as caught:
                bring(place, tmp_path / "run", trust_pickle=trust)
            assert caught.value.facts["calls"] == "posix.system"
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
    @pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
    def test_a_file_that_is_cut_off_is_refused(self, place: Path, tmp_path: Path, name: str, part: float) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: int(len(data) * part)])
        refused(place, tmp_path / "run")

    def test_a_bit_that_has_changed_in_a_tensor_is_found_and_the_tensor_named(self, place: Path, tmp_path: Path) -> None:
        metadata: Metadata = pickle.loads((place / ".metadata").read_bytes())
        (stored,) = (stored for index, stored in metadata.storage_data.items() if index.fqn == "model.w.0")
        data = bytearray((place / "__0_0.distcp").read_bytes())
        numbers = whole(5)["model"]["w.0"].numpy().tobytes()
        at = data.index(numbers, stored.offset)
        for flipped in range(0, len(numbers), 13):
            bent = bytearray(data)
            bent[at + flipped] ^= 1 << flipped % 8
            (place / "__0_0.distcp").write_bytes(bent)
            assert "name=`model.w.0`" in refused(place, tmp_path / "run")

    def test_a_save_that_had_not_ended_is_none(self, place: Path, tmp_path: Path) -> None:
        (place / ".metadata").unlink()
        assert not DcpDirectory().recognise(place)
        assert "DCP writes it last" in refused(place, tmp_path / "run")

    def test_a_checkpoint_of_megatron_is_refused_with_what_to_do(self, place: Path, tmp_path: Path) -> None:
        (place / "common.pt").write_bytes(b"")
        assert "Megatron" in refused(place, tmp_path / "run", "megatron", UsageError)

    def test_one_that_was_written_through_an_extension_is_refused(self, place: Path, tmp_path: Path) -> None:
        bend(place, lambda metadata: _stored(metadata, transform_descriptors=["stream.zstd"]))
        assert "stream.zstd" in refused(place, tmp_path / "run", "dcp-extension", UsageError)

    def test_keys_of_the_planner_that_are_no_paths_are_left_out(self, place: Path, tmp_path: Path) -> None:
        bend(place, lambda metadata: setattr(metadata, "planner_data", {"model.w.0": ("model", 1.5), "optim": 3, 4: "x"}))
        bring(place, tmp_path / "run")
        found = {"model.w.0": torch.zeros(7, 5)}
        dcp.load(found, tmp_path / "run", no_dist=True)
        assert torch.equal(found["model.w.0"], whole(5)["model"]["w.0"])
