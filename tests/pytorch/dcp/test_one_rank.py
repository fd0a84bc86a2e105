"""What DCP is given and gives through a run root, in one process. A6, A8, A10"""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager

import milepost
from milepost.cli.main import main
from milepost.errors import (
    ConflictError,
    CorruptError,
    InternalError,
    MilepostError,
    MismatchError,
    NotFoundError,
    SaveFailed,
    StoreError,
    UsageError,
)
from milepost.publish.view import read
from milepost.pytorch.dcp import RunReader, RunWriter, as_error, give_up, holding, load, save
from milepost.testing.faults import FaultStore, run_in_child
from tests.engine.training import local
from tests.pytorch.dcp.states import VALUES, blank, differences, whole


def state(value: float = 1.0) -> dict[str, Any]:
    return {"model": {"w": torch.full((4, 3), float(value)), "b": torch.arange(3.0) * value}, "step": int(value)}


def numbers_of(root: str) -> list[int]:
    return sorted(read(local(Path(root))).live)


def blobs_of(root: str) -> set[str]:
    return {path.name for path in (Path(root) / "blobs").iterdir()}


def test_what_plain_dcp_saves_plain_dcp_loads(root: str) -> None:
    wanted = whole(3)
    metadata = dcp.save(wanted, storage_writer=RunWriter(root, step=3), no_dist=True)
    assert (metadata.storage_data.number, metadata.storage_data.step) == (1, 3)
    live = blank(whole(4))
    dcp.load(live, storage_reader=RunReader(root), no_dist=True)
    assert differences(live, wanted) == []


def test_a_checkpoint_id_is_the_step(root: str) -> None:
    writer = RunWriter(root)
    for step in (10, 20, 30):
        dcp.save(state(step), checkpoint_id=str(step), storage_writer=writer, no_dist=True)
    live = state(0)
    dcp.load(live, checkpoint_id="20", storage_reader=RunReader(root), no_dist=True)
    assert differences(live, state(20)) == []
    with pytest.raises(UsageError, match="checkpoint_id is the step"):
        dcp.save(state(), checkpoint_id="runs/step-40", storage_writer=writer, no_dist=True)
    with pytest.raises(CheckpointException) as failed:
        dcp.load(state(0), checkpoint_id="40", storage_reader=RunReader(root), no_dist=True)
    assert as_error(failed.value).kind == "no-such-step"


def test_a_writer_is_no_stager_so_that_async_save_stages_with_dcps_own(root: str) -> None:
    assert not isinstance(RunWriter(root), AsyncStager)


def test_an_async_save_in_a_thread_is_of_the_state_when_it_was_asked_for(root: str) -> None:
    live = state(5)
    future = dcp.async_save(live, storage_writer=RunWriter(root, step=5), no_dist=True)
    live["model"]["w"].fill_(-1)
    future.result()
    found = state(0)
    assert load(found, root, no_dist=True).step == 5
    assert differences(found, state(5)) == []


def test_ls_verify_and_diff_understand_such_a_generation_and_load_gives_it_whole(root: str) -> None:
    for value in (1, 2):
        save(state(value), RunWriter(root, step=value), no_dist=True)
    for command, said in ((["ls", root], "2"), (["verify", root], "2 valid"), (["diff", root, "1", "2"], "policy")):
        done = CliRunner().invoke(main, command)
        assert said in done.output.lower(), done.output
        assert done.exit_code in (0, 1), done.output
    loaded: Any = milepost.load(root)
    assert torch.equal(loaded["policy"]["model.w"], state(2)["model"]["w"])
    assert loaded["extra"] == {"step": 2}


def test_nothing_on_disk_is_a_pickle(root: str) -> None:
    save({**whole(1), "values": VALUES}, RunWriter(root), no_dist=True)
    for path in Path(root).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"PK\x03\x04" not in data, path
            assert not any(data.startswith(b"\x80" + bytes([protocol]) + b"\x95") for protocol in range(2, 6)), path


class Odd:
    """Be what only a pickle can hold."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


def test_what_only_a_pickle_can_hold_is_refused_or_written_where_allowed_and_read_where_trusted(root: str) -> None:
    with pytest.raises(UsageError, match="no plain data") as refused:
        save({**state(), "odd": Odd(3)}, RunWriter(root), no_dist=True)
    assert refused.value.kind == "pickle-not-allowed"
    assert numbers_of(root) == []
    assert blobs_of(root) == set()
    save({**state(), "odd": Odd(3)}, RunWriter(root, allow_pickle=True), no_dist=True)
    live = {**state(0), "odd": Odd(0)}
    with pytest.raises(UsageError, match="unpickled"):
        load(live, root, no_dist=True)
    load(live, root, trust_pickle=True, no_dist=True)
    assert live["odd"] == Odd(3)


def test_an_object_with_a_state_of_its_own_within_a_value_is_no_plain_data(root: str) -> None:
    # Its plain state would come back in its place.
    with pytest.raises(UsageError) as refused:
        save({"list": [[torch.optim.SGD([torch.zeros(1)], lr=0.1)]]}, RunWriter(root), no_dist=True)
    assert refused.value.kind == "pickle-not-allowed"


class Halving(DefaultSavePlanner):
    """Save what is no tensor as a planner of one's own does."""

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(b"bytes of its own")
        return super().resolve_data(write_item)


class Wrapping(DefaultSavePlanner):
    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002
        return super().transform_object(write_item, ["wrapped", object] if write_item.type == WriteItemType.BYTE_IO else object)


def test_what_a_planner_of_ones_own_makes_of_a_value_is_saved(root: str) -> None:
    save(state(3), RunWriter(root), planner=Wrapping(), no_dist=True)
    live = state(0)
    load(live, root, no_dist=True)
    assert live["step"] == ["wrapped", 3]


def test_bytes_of_a_planners_own_are_taken_for_a_pickle(root: str) -> None:
    with pytest.raises(UsageError) as refused:
        save(state(3), RunWriter(root), planner=Halving(), no_dist=True)
    assert refused.value.kind == "pickle-not-allowed"
    save(state(3), RunWriter(root, allow_pickle=True), planner=Halving(), no_dist=True)
    with pytest.raises(UsageError) as refused:
        load(state(0), root, no_dist=True)
    assert refused.value.kind == "pickle-not-trusted"


def test_a_save_is_refused_whose_planner_keeps_what_is_no_plain_data(root: str) -> None:
    class Keeping(DefaultSavePlanner):
        def create_global_plan(self, all_plans: list[Any]) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            metadata.planner_data["more"] = Odd(1)
            return plans, metadata

    with pytest.raises(UsageError, match="planner"):
        save(state(), RunWriter(root), planner=Keeping(), no_dist=True)
    assert numbers_of(root) == []


def test_errors_are_exceptions_and_within_plain_dcp_they_are_in_its_own_which_is_none(root: str) -> None:
    assert not issubclass(CheckpointException, Exception)
    with pytest.raises(CheckpointException) as failed:
        dcp.load(state(), storage_reader=RunReader(root), no_dist=True)
    assert isinstance(as_error(failed.value), NotFoundError)
    caught: Exception | None = None
    try:
        load(state(), root, no_dist=True)
    except Exception as error:  # noqa: BLE001 - this is what is tested
        caught = error
    assert isinstance(caught, NotFoundError)


def test_a_reader_that_finds_nothing_tells_whoever_looks_at_its_metadata(root: str) -> None:
    metadata = RunReader(root).read_metadata()
    with pytest.raises(NotFoundError):
        metadata.state_dict_metadata  # noqa: B018


@pytest.mark.parametrize(
    "error",
    [
        UsageError("no", kind="k", hint="h", at=Path("x"), cause=ValueError("v")),
        StoreError("no", kind="disk-full", retryable=True, undone=True, name="n"),
        MismatchError("no", [milepost.Difference("a", "b", "c")], kind="k"),
        CorruptError("no", kind="nothing-valid"),
        SaveFailed("no", kind="k"),
        milepost.MissingExtraError("torch", "torch"),
        ConflictError("no", kind="k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_travels_from_rank_to_rank_as_it_is(error: MilepostError) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.kind, again.hint, again.exit_code) == (str(error), error.kind, error.hint, error.exit_code)
    for name in ("retryable", "undone", "differences"):
        assert getattr(again, name, None) == getattr(error, name, None)
    assert str(pickle.loads(pickle.dumps(again))) == str(error)


@pytest.mark.parametrize("operation", ["write_blob", "commit_blob"])
def test_a_write_that_fails_in_its_thread_fails_the_save_and_nothing_is_published(root: str, operation: str) -> None:
    store = FaultStore(local(Path(root)))
    store.fail(operation, "blobs/*", StoreError("the disk failed", kind="io", retryable=False), times=None)
    big = {"model": {"w": torch.zeros(9 << 20)}}  # larger than what is written by the thread that saves
    with pytest.raises(StoreError, match="the disk failed"):
        save(big, RunWriter(store), no_dist=True)
    assert numbers_of(root) == []
    assert blobs_of(root) == set()


def test_a_file_whose_sync_failed_is_written_anew_under_another_name(root: str) -> None:
    store = FaultStore(local(Path(root)))
    store.fail("commit_blob", "blobs/*", StoreError("the disk failed", kind="io", retryable=False))
    save(state(3), RunWriter(store), no_dist=True)
    live = state(0)
    load(live, root, no_dist=True)
    assert differences(live, state(3)) == []


def test_a_result_that_is_missing_is_a_failed_save(root: str) -> None:
    class Forgetful(RunWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(metadata, [some[1:] for some in results])

    with pytest.raises(InternalError, match="nothing is published"):
        save(state(), Forgetful(root), no_dist=True)
    assert numbers_of(root) == []
    save(state(2), RunWriter(root), no_dist=True)
    assert len(blobs_of(root)) == 1, "what the failed save had written is gone"


def test_two_states_of_one_shape_in_two_roots_with_cached_plans_do_not_get_mixed_up(tmp_path: Path) -> None:
    # DCP keeps plans by the name of the planner's class: the critic is given the actor's plan, errand and all.
    for round_ in range(3):
        for index, dtype in enumerate((torch.float32, torch.bfloat16)):
            planner = DefaultSavePlanner(enable_plan_caching=True)
            one = {"model": {"w": torch.full((4, 3), round_ * 10 + index, dtype=dtype)}}
            saved = save(one, RunWriter(tmp_path / f"{index}", step=round_), planner=planner, no_dist=True)
            assert saved.number == round_ + 1
    for index, dtype in enumerate((torch.float32, torch.bfloat16)):
        live = {"model": {"w": torch.zeros((4, 3), dtype=dtype)}}
        assert load(live, tmp_path / f"{index}", no_dist=True).step == 2
        assert differences(live, {"model": {"w": torch.full((4, 3), 20 + index, dtype=dtype)}}) == []
        whole_again: Any = milepost.load(tmp_path / f"{index}")
        assert whole_again["policy"]["model.w"].dtype is dtype
        assert milepost.verify(tmp_path / f"{index}").ok
        owners = {path.name.split("-")[1] for path in (tmp_path / f"{index}" / "blobs").iterdir()}
        assert owners == {"t1"}


def test_one_process_keeps_its_claim_over_writers_and_another_is_refused_with_its_name(root: str) -> None:
    for value in (1, 2):
        save(state(value), RunWriter(root, step=value), no_dist=True)
    assert len(list((Path(root) / "terms").iterdir())) == 2, "one claim"

    def another() -> None:
        holding._held.clear()
        with pytest.raises(ConflictError) as refused:
            save(state(), RunWriter(root), no_dist=True)
        assert refused.value.kind == "held"
        assert str(os.getppid()) in str(refused.value)

    assert run_in_child(another) == 0
    give_up(root)

    def a_third() -> None:
        holding._held.clear()
        save(state(3), RunWriter(root), no_dist=True)

    assert run_in_child(a_third) == 0
    assert numbers_of(root) == [1, 2, 3]


def test_a_forked_child_may_not_save_with_its_parents_claim(root: str) -> None:
    save(state(), RunWriter(root), no_dist=True)

    def child() -> None:
        with pytest.raises(UsageError, match="parent"):
            save(state(2), RunWriter(root), no_dist=True)

    assert run_in_child(child) == 0
    save(state(2), RunWriter(root), no_dist=True)
    assert numbers_of(root) == [1, 2]


def test_who_was_fenced_is_told_at_the_next_save_and_changes_nothing(root: str) -> None:
    save(state(), RunWriter(root), no_dist=True)

    def taker() -> None:
        holding._held.clear()
        save(state(2), RunWriter(root, take_over=True), no_dist=True)

    assert run_in_child(taker) == 0
    before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")}
    for _ in range(2):
        with pytest.raises(ConflictError, match="claimed"):
            save(state(3), RunWriter(root), no_dist=True)
    assert {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")} == before


def test_what_is_saved_after_a_load_goes_back_to_what_was_loaded(root: str) -> None:
    for value in (1, 2, 3):
        save(state(value), RunWriter(root, step=value), no_dist=True)
    live = state(0)
    load(live, root, which=2, no_dist=True)
    save(live, RunWriter(root, step=20), no_dist=True)
    save(live, RunWriter(root, step=21), no_dist=True)
    manifests = {number: read(local(Path(root))).live[number] for number in numbers_of(root)}
    assert manifests[4].rollback_to == 2
    assert 3 not in manifests[4].line
    assert manifests[5].rollback_to is None


def test_what_is_not_finite_makes_a_generation_that_a_load_passes_over(root: str) -> None:
    save(state(1), RunWriter(root, step=1), no_dist=True)
    bad = state(2)
    bad["model"]["w"][1, 1] = float("nan")
    save(bad, RunWriter(root, step=2), no_dist=True)
    live = state(0)
    restored = load(live, root, no_dist=True)
    assert restored.step == 1
    assert "not finite: policy/model.w" in restored.skipped[0]
    assert not torch.isnan(live["model"]["w"]).any()


def test_keep_says_which_generations_stay(root: str) -> None:
    for value in range(1, 6):
        save(state(value), RunWriter(root, step=value, keep=milepost.Keep(last=2)), no_dist=True)
    give_up(root)  # what they drop is deleted beside training
    assert numbers_of(root) == [4, 5]
    assert len(blobs_of(root)) == 2


def test_what_is_dropped_is_deleted_beside_training_and_before_anything_else_is_done_to_the_root(root: str) -> None:
    store = FaultStore(local(Path(root)))
    writer = RunWriter(store, keep=milepost.Keep(last=1))
    dcp.save(state(1), checkpoint_id="1", storage_writer=writer, no_dist=True)
    gate = store.pause("delete", "blobs/*")
    dcp.save(state(2), checkpoint_id="2", storage_writer=writer, no_dist=True)
    gate.wait_until_reached()
    loaded = state(0)
    dcp.load(loaded, storage_reader=RunReader(root), no_dist=True)
    assert loaded["step"] == state(2)["step"]
    with ThreadPoolExecutor(1) as pool:
        given_up = pool.submit(give_up, store)
        assert len(blobs_of(root)) == 2
        assert not given_up.done()
        gate.release()
        given_up.result()
    assert len(blobs_of(root)) == 1


def test_a_later_save_that_is_begun_before_the_first_has_ended_is_refused_and_the_first_ends_well(root: str) -> None:
    store = FaultStore(local(Path(root)))
    gate = store.pause("commit_blob", "blobs/*")
    future = dcp.async_save(state(1), storage_writer=RunWriter(store, step=1), no_dist=True)
    gate.wait_until_reached()
    with pytest.raises(UsageError) as refused:
        save(state(2), RunWriter(root, step=2), no_dist=True)
    assert refused.value.kind == "save-in-flight"
    gate.release()
    future.result()
    save(state(3), RunWriter(root, step=3), no_dist=True)
    assert numbers_of(root) == [1, 2]


def test_a_generation_that_was_saved_otherwise_is_refused_by_its_name(root: str) -> None:
    milepost.save(root, {"policy": {"w": [1.0]}})
    with pytest.raises(MismatchError) as refused:
        load(state(), root, no_dist=True)
    assert refused.value.kind == "not-dcp"


def test_a_state_that_does_not_fit_is_named(root: str) -> None:
    save(state(), RunWriter(root), no_dist=True)
    for other in ({**state(), "more": torch.zeros(2)}, {"model": {"w": torch.zeros(4, 4)}}):
        with pytest.raises(MismatchError) as refused:
            load(other, root, no_dist=True)
        assert refused.value.kind == "state-dict"
        assert "more" in str(refused.value) or "model.w" in str(refused.value)


def test_a_tensor_that_is_converted_is_told(root: str) -> None:
    save({"w": torch.full((2,), 1.5)}, RunWriter(root), no_dist=True)
    live = {"w": torch.zeros(2, dtype=torch.int64)}
    assert load(live, root, no_dist=True).inexact == ("converted to another dtype: w (float32 to int64)",)


def test_without_collectives_nothing_is_saved(root: str) -> None:
    with pytest.raises(UsageError, match="without collectives"):
        dcp.save(state(), storage_writer=RunWriter(root), no_dist=True, use_collectives=False)


@pytest.mark.parametrize(
    "bad", [{"step": "3"}, {"metrics": {"loss": "low"}}, {"counters": {"epochs": 1.5}}, {"components": {"model": "weights"}}]
)
def test_a_setting_that_cannot_work_is_refused_at_once(root: str, bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RunWriter(root, **bad)
    with pytest.raises(UsageError):
        RunReader(root, which="newest")  # type: ignore[arg-type]


def test_keys_become_the_components_that_they_are_said_to_be(root: str) -> None:
    both = {"actor": {"w": torch.ones(2)}, "critic": {"w": torch.zeros(2)}, "actor_optim": {"lr": 0.1}}
    names = {"actor": "default/policy", "critic": "critic/value", "actor_optim": "default/optimizer"}
    save(both, RunWriter(root, components=names), no_dist=True)
    loaded: Any = milepost.load(root)
    assert set(loaded) == {"default/policy", "critic/value", "default/optimizer", "dcp"}
    assert loaded["default/optimizer"] == {"actor_optim.lr": 0.1}


def test_in_a_signed_root_everything_is_signed_and_what_is_not_is_refused(root: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    other = tmp_path / "other"
    other.write_bytes(bytes(range(1, 33)))
    other.chmod(0o600)
    for value in (1, 2):
        save(state(value), RunWriter(root, step=value, key_file=key), no_dist=True)
    live = state(0)
    assert load(live, root, key_file=key, no_dist=True).step == 2
    assert differences(live, state(2)) == []
    assert "sha256:" in (Path(root) / "generations" / "000002.json").read_text().split('"components"')[1]
    with pytest.raises(CorruptError) as refused:
        load(state(0), root, key_file=other, no_dist=True)
    assert refused.value.kind == "bad-signature"


def test_what_dcp_loads_without_a_state_to_load_into_comes_from_the_metadata(root: str) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    save(state(3), RunWriter(root), no_dist=True)
    with pytest.warns(UserWarning, match="torch.distributed"):
        found = _load_state_dict_from_keys(storage_reader=RunReader(root))
    assert differences(found, state(3)) == []


def test_a_state_that_a_failed_load_has_left_half_overwritten_is_not_saved(root: str) -> None:
    save(whole(1), RunWriter(root, step=1), no_dist=True)
    for blob in (Path(root) / "blobs").iterdir():
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.write_bytes(data)
    live = blank(whole(2))
    with pytest.raises(CorruptError):
        load(live, root, which=1, no_dist=True)
    with pytest.raises(UsageError) as refused:
        save(live, RunWriter(root, step=2), no_dist=True)
    assert refused.value.kind == "half-loaded"
    for blob in (Path(root) / "blobs").iterdir():
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.write_bytes(data)
    load(live, root, no_dist=True)
    save(live, RunWriter(root, step=2), no_dist=True)


def test_a_claim_is_not_given_up_while_a_save_is_being_written(root: str) -> None:
    store = FaultStore(local(Path(root)))
    gate = store.pause("commit_blob", "blobs/*")
    future = dcp.async_save(state(1), storage_writer=RunWriter(store, step=1), no_dist=True)
    gate.wait_until_reached()
    with pytest.raises(UsageError) as refused:
        give_up(root)
    assert refused.value.kind == "save-in-flight"
    gate.release()
    future.result()
    give_up(root)


class Unfinished(DefaultSavePlanner):
    """Fail where rank 0 has given out the errands, and nobody has begun to write: as ranks do that lose each other there."""

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        raise OSError("no answer")


def test_a_save_that_fails_before_its_first_byte_does_not_hold_the_root_for_ever(root: str) -> None:
    writer = RunWriter(root, step=1)
    with pytest.raises(MilepostError, match="no answer"):
        save(state(1), writer, planner=Unfinished(), no_dist=True)
    assert save(state(2), RunWriter(root, step=2), no_dist=True).step == 2
    with pytest.raises(MilepostError, match="no answer"):
        save(state(3), RunWriter(root, step=3), planner=Unfinished(), no_dist=True)
    give_up(root)


def test_a_save_that_is_refused_beside_another_does_not_end_that_ones_claim(root: str) -> None:
    store = FaultStore(local(Path(root)))
    gate = store.pause("commit_blob", "blobs/*")
    writer = RunWriter(store, step=1)
    future = dcp.async_save(state(1), storage_writer=writer, no_dist=True)
    gate.wait_until_reached()
    with pytest.raises(UsageError, match="still being written"):
        save(state(2), RunWriter(store, step=2), no_dist=True)
    with pytest.raises(UsageError, match="still being written"):
        give_up(root)
    gate.release()
    future.result()


class Doubled(torch.Tensor):
    """Stand for another tensor, as quantized weights do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Doubled:
        made: Doubled = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> Doubled:
        return Doubled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*(arg.inner if isinstance(arg, Doubled) else arg for arg in args), **(kwargs or {}))
        return Doubled(made) if isinstance(made, torch.Tensor) else made


def test_a_tensor_that_only_stands_for_others_is_refused_by_its_name(root: str) -> None:
    with pytest.raises(UsageError, match="wraps others") as refused:
        save({"model": {"w": Doubled(torch.ones(2))}}, RunWriter(root), no_dist=True)
    assert refused.value.facts["path"] == "policy/model.w"


@pytest.mark.parametrize("landed", [True, False])
def test_a_manifest_of_which_nobody_knows_whether_it_landed_is_found_by_the_next_save(root: str, landed: bool) -> None:
    store = FaultStore(local(Path(root)))
    save(state(1), RunWriter(store, step=1), no_dist=True)
    if landed:
        store.lose_answer("create", "generations/*", nth=1)
        store.fail("read", "generations/000002.json", times=None)
    else:
        unknown = StoreError("timed out", kind="timeout", retryable=False)
        store.fail("create", "generations/*", unknown, times=2)
    with suppress(StoreError):
        save(state(2), RunWriter(store, step=2), no_dist=True)
    store._rules.clear()
    save(state(3), RunWriter(store, step=3), no_dist=True)
    live = state(0)
    assert load(live, root, no_dist=True).step == 3
    assert differences(live, state(3)) == []
    assert milepost.verify(root).ok
    named = {blob.name for summary in read(local(Path(root))).live.values() for blob in summary.blobs}
    save(state(4), RunWriter(store, step=4), no_dist=True)
    named |= {blob.name for summary in read(local(Path(root))).live.values() for blob in summary.blobs}
    assert {f"blobs/{name}" for name in blobs_of(root)} <= named


def test_the_command_line_does_with_such_a_run_what_it_does_with_any(root: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    for value in (1, 2, 3):
        save({**state(value), "long": "x" * 3000}, RunWriter(root, step=value), own={"rng": milepost.Rng()}, no_dist=True)
    give_up(root)
    signed = str(tmp_path / "signed")
    for command in (
        ["show", root],
        ["scrub", root],
        ["pin", root, "1"],
        ["rollback", root, "2"],
        ["gc", root, "--keep-last", "1", "--yes"],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    live = {**state(0), "long": ""}
    assert load(live, root, own={"rng": milepost.Rng()}, no_dist=True).step == 2
    assert differences(live, {**state(2), "long": "x" * 3000}) == []
    done = CliRunner().invoke(main, ["sign", root, signed, "--key-file", str(key)])
    assert done.exit_code == 0, done.output
    live = {**state(0), "long": ""}
    load(live, signed, key_file=key, no_dist=True)
    assert differences(live, {**state(2), "long": "x" * 3000}) == []
    save(live, RunWriter(root, step=5), no_dist=True)
    assert milepost.verify(root).ok


def test_the_best_stays_and_is_found_by_the_metric_that_was_measured(root: str) -> None:
    keep = milepost.Keep(last=1, best=1, by="return")
    for step, score in ((1, 3.0), (2, 9.0), (3, float("nan")), (4, 5.0)):
        writer = RunWriter(root, step=step, keep=keep, metrics={"return": score}, counters={"episodes": 10 * step})
        save(state(step), writer, no_dist=True)
    assert numbers_of(root) == [2, 4]
    live = state(0)
    restored = load(live, root, which="best", keep=keep, no_dist=True)
    assert (restored.step, restored.counters) == (2, {"episodes": 20})
    assert differences(live, state(2)) == []


@pytest.mark.parametrize("struck", [KeyboardInterrupt, SystemExit])
def test_a_ctrl_c_within_a_save_is_a_ctrl_c_and_leaves_nothing(root: str, struck: type[BaseException]) -> None:
    class Struck(DefaultSavePlanner):
        def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
            raise struck

    with pytest.raises(struck):
        save(state(), RunWriter(root), planner=Struck(), no_dist=True)
    assert (numbers_of(root), blobs_of(root)) == ([], set())
    save(state(2), RunWriter(root), no_dist=True)
