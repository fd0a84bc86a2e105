"""What AReaL has saved, in both of its layouts, goes on with milepost from the step that AReaL would have trained. A8, A11"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import milepost
from milepost.engine import oneshot
from milepost.errors import CorruptError, MilepostError, MismatchError, NotFoundError, UsageError
from milepost.pytorch import RecoverHandler, TrainEngine
from milepost.pytorch.importing.areal import Areal, import_areal_in_place
from milepost.pytorch.importing.base import Imported, Options
from milepost.testing.power import Cut, Recorder, replay
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run
from tests.pytorch.importing.conftest import Payloads
from tests.pytorch.importing.trees import LOADER, SEEDS, STEP, Trainer, pointer, trained, write_generations, write_older

LAST = 11
WHERE = {"experiment": "math", "trial": "one", "user": "u"}


class Plain:
    """Be a data loader, or a stats logger: something with a state."""

    def __init__(self) -> None:
        self.state: Any = None

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def place_of(fileroot: Path) -> Path:
    return fileroot / "checkpoints" / "u" / "math" / "one"


def bring(path: Path, root: Path | str, **options: Any) -> Imported:
    return Areal().bring(path, str(root), Options(**options))


def gone_on(_rank: int, fileroot: str) -> tuple[int, Any, Any, dict[str, dict[str, bytes]], dict[str, dict[str, bytes]]]:
    """Resume with fresh engines, and train to the end: the next step, data, statistics, the bits then and at the end."""
    trainers = {engine: Trainer(seed=99) for engine in SEEDS}
    engines = {name: TrainEngine(trainer.model, trainer.optimizer) for name, trainer in trainers.items()}
    loader, stats = Plain(), Plain()
    with RecoverHandler(fileroot, mode="on", **WHERE) as handler:
        info = handler.load(engines, dataloader=loader, stats_logger=stats)
        assert info is not None
        first = info.last_step_info.next().global_step
        then = {name: trainer.bits() for name, trainer in trainers.items()}
        for trainer in trainers.values():
            trainer.train(first, LAST)
        assert handler.dump(engines, info.last_step_info.next(), dataloader=loader, force=True)
    return first, loader.state, stats.state, then, {name: trainer.bits() for name, trainer in trainers.items()}


def undisturbed(_rank: int) -> dict[str, dict[str, bytes]]:
    return {name: trained(name, LAST).bits() for name in SEEDS}


def several(rank: int, places: list[str]) -> list[Any]:
    found = []
    for place in places:
        found.append(gone_on(rank, place))
        dist.barrier()
    return [*found, undisturbed(rank)]


class TestResuming:
    def test_two_ranks_go_on_bit_for_bit_from_what_two_and_one_have_saved(self, payloads: Payloads, tmp_path: Path) -> None:
        loaders = [{**LOADER, "rank": 0}, {**LOADER, "rank": 1}]
        write_generations(tmp_path / "trial", payloads.of(2), loaders)
        write_older(tmp_path / "old", payloads.of(1), LOADER)
        bring(tmp_path / "trial", place_of(tmp_path / "a"))
        bring(tmp_path / "old", place_of(tmp_path / "b"))
        ranks = run(2, several, tmp_path, [str(tmp_path / "a"), str(tmp_path / "b")])
        for rank, ((first, data, stats, then, end), older, alone) in enumerate(ranks):
            assert (first, data, stats) == (8, loaders[rank], {"last_commit_step": 7})
            assert then == payloads.bits[2]
            assert end == alone
            assert older[:2] == (8, LOADER)  # AReaL's single controller has one loader: each rank gets its state
            assert older[3] == payloads.bits[1]

    def test_one_process_goes_on_from_what_one_and_two_ranks_have_saved(self, payloads: Payloads, tmp_path: Path) -> None:
        alone = undisturbed(0)
        for ranks, write in ((1, write_generations), (2, write_older)):
            write(tmp_path / f"trial{ranks}", payloads.of(ranks))
            bring(tmp_path / f"trial{ranks}", place_of(tmp_path / str(ranks)))
            first, data, _, then, end = gone_on(0, str(tmp_path / str(ranks)))
            assert (first, data, then) == (8, LOADER, payloads.bits[ranks])
            assert end == alone or ranks == 2  # what is summed over two ranks comes in another order

    def test_a_schedule_that_somebody_saved_beside_the_payload_comes_along(self, payloads: Payloads, tmp_path: Path) -> None:
        import torch

        found = write_generations(tmp_path / "trial", payloads.of(1))
        trainer = trained("default")
        trainer.scheduler.step()
        torch.save(trainer.scheduler.state_dict(), found / "payloads" / "default" / "lr_scheduler.pt")
        imported = bring(tmp_path / "trial", place_of(tmp_path))
        assert "default/lr_scheduler" in imported.components
        assert any(text.startswith("LR schedulers of critic:") for text in imported.left_out)
        trainers = {name: Trainer(seed=99) for name in SEEDS}
        engines = {name: TrainEngine(each.model, each.optimizer) for name, each in trainers.items()}
        with RecoverHandler(tmp_path, mode="on", **WHERE) as handler:
            with pytest.raises(MismatchError, match="default/lr_scheduler: saved a schedule, here none"):
                handler.load(engines)
            engines["default"] = replace(engines["default"], lr_scheduler=trainers["default"].scheduler)
            info = handler.load(engines)
        assert info is not None
        assert any("its settings were not saved apart" in text for text in info.inexact)
        assert trainers["default"].scheduler.state_dict() == trainer.scheduler.state_dict()


class TestLayouts:
    def test_the_published_generation_comes_and_what_a_crash_has_left_does_not(self, payloads: Payloads, tmp_path: Path) -> None:
        trial = tmp_path / "trial"
        write_generations(trial, payloads.of(1))
        before = listed(trial)
        imported = bring(trial, tmp_path / "run")
        assert (imported.generation, imported.step) == (1, 7)
        assert imported.components[:4] == ("default/policy", "default/optimizer", "critic/policy", "critic/optimizer")
        assert listed(trial) == before
        assert milepost.verify(tmp_path / "run").ok

    def test_a_step_of_nine_digits_is_one(self, payloads: Payloads, tmp_path: Path) -> None:
        step = {"epoch": 0, "epoch_step": 10**8, "global_step": 10**8, "steps_per_epoch": 10**9}
        write_generations(tmp_path / "trial", payloads.of(1), step=step)
        assert bring(tmp_path / "trial", tmp_path / "run").step == 10**8

    def test_a_generation_that_is_named_itself_comes_and_that_is_said(self, payloads: Payloads, tmp_path: Path) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1))
        (tmp_path / "trial" / "LATEST").write_text("{torn")
        imported = bring(found, tmp_path / "run")
        assert any("named itself" in text for text in imported.left_out)

    def test_unknown_fields_of_the_pointer_are_ignored_and_unknown_files_of_the_manifest_named(
        self, payloads: Payloads, tmp_path: Path
    ) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1))
        (tmp_path / "trial" / "LATEST").write_text(pointer(node="host7"))
        (found / "manifest" / "extra_state.pkl").write_bytes(b"?")
        assert any("extra_state.pkl" in text for text in bring(tmp_path / "trial", tmp_path / "run").left_out)

    def test_the_epoch_that_areal_keeps_for_its_sampler_is_told_and_not_given_to_the_loader(
        self, payloads: Payloads, tmp_path: Path
    ) -> None:
        loader = {**LOADER, "_areal_distributed_sampler_epoch": 3}
        write_generations(tmp_path / "trial", payloads.of(1), loader)
        imported = bring(tmp_path / "trial", place_of(tmp_path))
        assert any("sampler's epoch (3)" in text for text in imported.left_out)
        assert gone_on(0, str(tmp_path))[1] == LOADER


def listed(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


POINTERS: dict[str, tuple[str, str]] = {
    "empty": ("", "torn"),
    "torn": (pointer()[:40], "torn"),
    "not an object": ("[1]", "it is no object"),
    "no step": ('{"format_version": 1, "generation": "x", "engines": ["default"]}', "it has no global_step"),
    "another version": (pointer(format_version=2), "only 1 is known"),
    "true for a version": (pointer(format_version=True), "only 1 is known"),
    "a step that is text": (pointer(global_step="7"), "global_step"),
    "a negative step": (pointer(global_step=-1), "global_step"),
    "another generation": (pointer(generation="generation_step00000006"), "generation is not that of its global_step"),
    "a generation elsewhere": (pointer(generation="../../etc"), "generation is not that of its global_step"),
    "no engines": (pointer(engines=()), "engines is no list"),
    "engines that are no names": (pointer(engines=(1,)), "engines is no list"),  # type: ignore[arg-type]
    "an engine that is a path": (pointer(engines=("default", "../critic")), "is a path"),
    "an engine twice": (pointer(engines=("default", "default")), "named twice"),
    "an engine that is not there": (pointer(engines=("default", "ref")), "a part is missing"),
    "a generation that is not there": (pointer(9), "a part is missing"),
}


class TestDamage:
    """Whatever is wrong: one clear error, nothing written, the source as it was."""

    def refused(self, trial: Path, root: Path, kind: str = "damaged-source", error: type[MilepostError] = CorruptError) -> str:
        before = listed(trial)
        with pytest.raises(error) as caught:
            bring(trial, root)
        assert caught.value.kind == kind
        assert caught.value.hint
        assert not (root / "generations").exists() or not list((root / "generations").iterdir())
        assert listed(trial) == before
        return str(caught.value)

    @pytest.mark.parametrize("name", POINTERS)
    def test_a_pointer_that_is_none_is_refused_by_name(self, payloads: Payloads, tmp_path: Path, name: str) -> None:
        write_generations(tmp_path / "trial", payloads.of(1))
        text, told = POINTERS[name]
        (tmp_path / "trial" / "LATEST").write_text(text)
        message = self.refused(tmp_path / "trial", tmp_path / "run")
        assert told in message
        assert "LATEST" in message
        assert "trial/checkpoint_generations/generation_step00000007" in message

    def test_generations_without_a_pointer_were_never_published(self, payloads: Payloads, tmp_path: Path) -> None:
        write_generations(tmp_path / "trial", payloads.of(1))
        (tmp_path / "trial" / "LATEST").unlink()
        self.refused(tmp_path / "trial", tmp_path / "run", "nothing-published", NotFoundError)
        assert import_areal_in_place(tmp_path / "trial") is None

    @pytest.mark.parametrize(
        "name", ["manifest/step_info.json", "manifest/dataloader_info.pkl", "manifest/stats_logger_info.json"]
    )
    @pytest.mark.parametrize("how", ["missing", "empty", "torn", "link"])
    def test_a_manifest_that_a_power_cut_has_torn_is_refused(
        self, payloads: Payloads, tmp_path: Path, name: str, how: str
    ) -> None:
        path = write_generations(tmp_path / "trial", payloads.of(1)) / name
        spoil(path, how)
        assert os.path.basename(name) in self.refused(tmp_path / "trial", tmp_path / "run")

    @pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
    @pytest.mark.parametrize("how", ["missing", "empty", "torn", "link"])
    def test_a_payload_that_is_truncated_or_missing_is_refused(
        self, payloads: Payloads, tmp_path: Path, name: str, how: str
    ) -> None:
        path = write_generations(tmp_path / "trial", payloads.of(2)) / "payloads" / "critic" / name
        spoil(path, how)
        assert "critic" in self.refused(tmp_path / "trial", tmp_path / "run")

    def test_weights_that_cannot_be_read_when_they_are_written_leave_no_generation(
        self, payloads: Payloads, tmp_path: Path
    ) -> None:
        path = write_generations(tmp_path / "trial", payloads.of(1)) / "payloads" / "critic" / "__0_0.distcp"
        data = bytearray(path.read_bytes())
        data[data.rindex(b"PK\x05\x06") :] = bytes(len(data) - data.rindex(b"PK\x05\x06"))
        path.write_bytes(data)
        bring(tmp_path / "trial", tmp_path / "run", dry_run=True)  # tensors are read when they are written
        self.refused(tmp_path / "trial", tmp_path / "run")
        assert not [path for path in (tmp_path / "run" / "blobs").iterdir() if path.suffix == ".safetensors"]

    def test_a_step_that_is_not_that_of_the_pointer_is_refused(self, payloads: Payloads, tmp_path: Path) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1))
        (found / "manifest" / "step_info.json").write_text(json.dumps({**STEP, "global_step": 6}))
        assert "another step than LATEST" in self.refused(tmp_path / "trial", tmp_path / "run")

    def test_payloads_of_megatron_are_refused_with_what_to_do(self, payloads: Payloads, tmp_path: Path) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1))
        (found / "payloads" / "critic" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
        message = self.refused(tmp_path / "trial", tmp_path / "run", "megatron", UsageError)
        assert "torch_dist" in message
        assert "Hugging Face" in message

    def test_a_payload_that_areal_does_not_write_is_refused(self, payloads: Payloads, tmp_path: Path) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1)) / "payloads" / "critic"
        data = (found / ".metadata").read_bytes()
        (found / ".metadata").write_bytes(data.replace(b"\x8c\x03dcp\x94", b"\x8c\x03abc\x94"))
        assert "AReaL does not write" in self.refused(tmp_path / "trial", tmp_path / "run")

    def test_a_loader_state_that_runs_code_is_refused_and_told_by_name(self, payloads: Payloads, tmp_path: Path) -> None:
        found = write_generations(tmp_path / "trial", payloads.of(1)) / "manifest" / "dataloader_info.pkl"
        found.write_bytes(pickle.dumps({"epoch": Strange(tmp_path / "ran")}))
        message = self.refused(tmp_path / "trial", tmp_path / "run", "pickle-not-trusted", UsageError)
        assert "posix.system" in message
        assert "--trust-pickle" in message
        assert not (tmp_path / "ran").exists()
        bring(tmp_path / "trial", tmp_path / "run", trust_pickle=True)
        assert (tmp_path / "ran").exists()


class Strange:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "link":
        path.with_name("elsewhere").write_bytes(data)
        path.symlink_to("elsewhere")
    elif how != "missing":
        path.write_bytes(b"" if how == "empty" else data[: len(data) // 2])


class TestInPlace:
    """The trial's own directory becomes the run root: AReaL's LATEST stays, under another name."""

    def test_areals_pointer_is_set_aside_and_all_else_stays(self, payloads: Payloads, tmp_path: Path) -> None:
        trial = place_of(tmp_path)
        write_generations(trial, payloads.of(1))
        before = listed(trial)
        imported = import_areal_in_place(trial)
        assert imported is not None
        assert (imported.generation, imported.step) == (1, 7)
        after = listed(trial)
        assert after["LATEST.before-t1"] == before["LATEST"]
        assert {name: after[name] for name in before if name != "LATEST"} == {
            name: data for name, data in before.items() if name != "LATEST"
        }
        assert import_areal_in_place(trial) is None  # it is a run of milepost's now
        assert gone_on(0, str(tmp_path))[0] == 8

    def test_the_older_layout_comes_too(self, payloads: Payloads, tmp_path: Path) -> None:
        write_older(tmp_path / "trial", payloads.of(1))
        assert import_areal_in_place(tmp_path / "trial") is not None

    def test_where_there_is_nothing_of_areals_nothing_is_done(self, tmp_path: Path) -> None:
        assert import_areal_in_place(tmp_path / "nowhere") is None
        assert import_areal_in_place(tmp_path) is None
        assert list(tmp_path.iterdir()) == []

    def test_after_a_reset_it_can_be_imported_again_from_the_pointer_that_was_set_aside(
        self, payloads: Payloads, tmp_path: Path
    ) -> None:
        write_generations(tmp_path / "trial", payloads.of(1))
        import_areal_in_place(tmp_path / "trial")
        oneshot.reset(tmp_path / "trial")
        again = import_areal_in_place(tmp_path / "trial")
        assert again is not None
        assert again.step == 7

    def test_a_pointer_that_is_torn_does_not_let_training_begin_anew(self, payloads: Payloads, tmp_path: Path) -> None:
        write_generations(tmp_path / "trial", payloads.of(1))
        (tmp_path / "trial" / "LATEST").write_text("")
        with pytest.raises(CorruptError, match="torn"):
            import_areal_in_place(tmp_path / "trial")
        assert not (tmp_path / "trial" / "milepost.json").exists()

    def test_a_power_cut_anywhere_leaves_areals_pointer_and_it_can_be_done_again(
        self, payloads: Payloads, tmp_path: Path
    ) -> None:
        write_generations(tmp_path / "trial", payloads.of(1))
        files = listed(tmp_path / "trial")

        def act(place: Path, recorder: Recorder) -> None:
            store = local(place / "run", recorder)
            for name, data in files.items():
                store.create(name, data)
            recorder.note("theirs")
            imported = Areal().bring(place / "run", store, Options())  # type: ignore[arg-type]
            recorder.note("acknowledged", number=imported.generation)

        def check(cut: Cut, place: Path) -> None:
            if not cut.noted("theirs"):
                return
            root = place / "run"
            pointers = [path.read_bytes() for path in root.glob("LATEST*")]
            assert files["LATEST"] in pointers
            again = import_areal_in_place(root)
            assert (again is None) if cut.noted("acknowledged") else (again is None or again.step == 7)
            assert len(milepost.load(root, parts=["critic/policy"])["critic/policy"]) == 4  # type: ignore[index]

        tally = replay(act, check, seed=3, limit=20)
        assert tally.lost == 0, tally.failures[0]
        assert tally.acknowledged > 0


def test_a_run_that_is_there_is_refused_unless_one_is_to_be_added(payloads: Payloads, tmp_path: Path) -> None:
    milepost.save(tmp_path / "run", {"policy": [1.0]}, step=3)
    write_generations(tmp_path / "trial", payloads.of(1))
    with pytest.raises(UsageError) as caught:
        bring(tmp_path / "trial", tmp_path / "run")
    assert caught.value.kind == "not-empty"
    assert bring(tmp_path / "trial", tmp_path / "run", add=True).generation == 2
    assert milepost.load(tmp_path / "run", which=1) == {"policy": [1.0]}  # nothing that was there goes


def test_it_is_recognised_by_its_names(payloads: Payloads, tmp_path: Path) -> None:
    found = write_generations(tmp_path / "trial", payloads.of(1))
    write_older(tmp_path / "old", payloads.of(1))
    assert all(Areal().recognise(path) for path in (tmp_path / "trial", tmp_path / "old", found))
    assert not any(
        Areal().recognise(path) for path in (tmp_path, payloads.of(1) / "critic", found / "manifest" / "step_info.json")
    )
    shutil.rmtree(tmp_path / "old" / "recover_info")
    assert not Areal().recognise(tmp_path / "old")
