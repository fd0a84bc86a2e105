"""What a handler refuses, and that nothing is changed by it; what it passes over; how sampling hears of it. A5, A8, A12, A13"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from milepost.errors import ConflictError, CorruptError, MismatchError, NotFoundError, UsageError
from milepost.publish.view import read
from milepost.pytorch import Evaluator, RecoverHandler, Saver, TrainEngine, WeightUpdate, dcp
from tests.engine.training import local
from tests.pytorch.dcp.ranks import run as launch
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import Loader, at, digest, engines, run, train


def saved(place: Path, steps: int = 6, **more: Any) -> dict[str, TrainEngine]:
    trained, loader = engines(), Loader()
    with handler(place, **more) as each:
        run(each, trained, loader, steps)
    return trained


def refused(each: RecoverHandler, trained: dict[str, TrainEngine], error: type[Exception], match: str) -> None:
    """Check that a load is refused, and changes nothing."""
    before = digest(trained)
    with pytest.raises(error, match=match):
        each.load(trained)
    assert digest(trained) == before


@pytest.mark.parametrize("mode", ["off", "disabled", False])
def test_a_disabled_handler_touches_nothing(tmp_path: Path, mode: Any) -> None:
    trained, loader = engines(), Loader()
    with handler(tmp_path, mode=mode) as each:
        assert each.load(trained) is None
        run(each, trained, loader, 6)
        assert each.newest is None
    assert os.listdir(tmp_path) == []


def test_other_engines_are_refused_and_both_sets_named(tmp_path: Path) -> None:
    saved(tmp_path)
    trained = engines()
    del trained["ref"]
    trained["judge"] = TrainEngine(torch.nn.Linear(1, 1))
    with handler(tmp_path) as each:
        refused(each, trained, MismatchError, "engines: saved default, critic, ref, here default, critic, judge")
        each.load(engines())  # with those that were saved it goes on


def test_a_bare_number_is_neither_what_stays_nor_a_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which generations stay: keep=`3`"):
        handler(tmp_path, keep=3)
    with pytest.raises(UsageError, match="which generations stay"):
        dcp.RunWriter(tmp_path, keep=3)  # type: ignore[arg-type]
    with handler(tmp_path) as each, pytest.raises(UsageError, match="told by a StepInfo: step=`3`"):
        each.dump(engines(), 3)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def _wider(trained: dict[str, TrainEngine]) -> str:
    trained["ref"] = TrainEngine(torch.nn.Linear(4, 3))
    return r"ref/policy/weight: saved \[2, 4\], here \[3, 4\]"


def _other_names(trained: dict[str, TrainEngine]) -> str:
    trained["ref"] = TrainEngine(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    return "ref/policy/0.weight: saved nothing, here something"


def _other_dtype(trained: dict[str, TrainEngine]) -> str:
    trained["ref"].model.double()
    return "ref/policy/weight: saved torch.float32, here torch.float64"


def _other_groups(trained: dict[str, TrainEngine]) -> str:
    model = trained["default"].model
    trained["default"] = TrainEngine(model, torch.optim.AdamW(model.parameters()), trained["default"].lr_scheduler)
    return "default/optimizer/param_groups: saved 2 groups, here 1 groups"


def _no_optimizer(trained: dict[str, TrainEngine]) -> str:
    trained["critic"] = TrainEngine(trained["critic"].model)
    return "critic/optimizer: saved an optimizer, here none"


@pytest.mark.parametrize("change", [_wider, _other_names, _other_dtype, _other_groups, _no_optimizer])
def test_what_does_not_fit_is_refused_before_anything_is_changed(
    tmp_path: Path, change: Callable[[dict[str, TrainEngine]], str]
) -> None:
    saved(tmp_path)
    trained = engines(seed=3)
    match = change(trained)
    with handler(tmp_path) as each:
        refused(each, trained, MismatchError, match)


def test_another_dtype_may_be_accepted_and_is_told(tmp_path: Path) -> None:
    saved(tmp_path)
    trained = engines(seed=3)
    trained["ref"].model.double()
    with handler(tmp_path, on_mismatch={"dtype": "warn"}) as each:
        info = each.load(trained)
    assert info is not None
    assert any("converted" in text for text in info.inexact)


def test_a_trial_with_generations_is_not_saved_over_before_it_was_loaded(tmp_path: Path) -> None:
    saved(tmp_path)
    with handler(tmp_path) as each:
        with pytest.raises(UsageError, match="were not loaded"):
            each.dump(engines(), at(9), force=True)
        assert [one.step for one in read(local(Path(each.root))).live.values()] == [5]


def test_a_fresh_start_is_asked_for_and_the_next_start_goes_on_from_that(tmp_path: Path) -> None:
    saved(tmp_path)
    trained, loader = engines(seed=8), Loader()
    with handler(tmp_path) as each:
        assert each.load(trained, which="never") is None
        run(each, trained, loader, 3)
    with handler(tmp_path) as other:
        info = other.load(engines(seed=8))
    assert info is not None
    assert (info.step, info.generation) == (2, 3)


def test_a_run_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with handler(tmp_path) as each:
        milepost.save(each.root, {"policy": {"w": torch.ones(2)}}, step=1)
        with pytest.raises(UsageError, match="that a RecoverHandler has not saved") as caught:
            each.load(engines())
    assert caught.value.kind == "not-recover"
    with handler(tmp_path / "dcp") as each:
        dcp.save({"model": {"w": torch.ones(2)}}, dcp.RunWriter(each.root, step=1), no_dist=True)
        dcp.give_up(each.root)
        with pytest.raises(UsageError, match="that a RecoverHandler has not saved"):
            each.load(engines())


def _second(_rank: int, place: str) -> tuple[str, str]:
    try:
        with handler(Path(place)) as each:
            each.load(engines())
    except ConflictError as error:
        return error.kind, str(error)
    return "", ""


def test_a_second_process_of_a_trial_is_refused_at_its_load(tmp_path: Path) -> None:
    with handler(tmp_path) as each:
        each.load(engines())
        [(kind, text)] = launch(1, _second, tmp_path / "meet", str(tmp_path))
    assert kind == "held"
    assert str(os.getpid()) in text


def damage(root: str, number: int, what: str = "policy") -> None:
    """Flip a bit in a blob of a generation that no other has, within the bytes of one component."""
    from milepost.publish import layout
    from milepost.publish.manifest import load_record
    from milepost.records import Manifest

    manifest = load_record(local(Path(root)), layout.manifest(number), Manifest)
    component = next(each for each in manifest.components if each.name.endswith(what))
    leaf = next(leaf for leaf in component.leaves if leaf.size_bytes)
    path = Path(root) / manifest.blobs[leaf.blob].name
    data = bytearray(path.read_bytes())
    data[leaf.start] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["default/policy", "critic/optimizer", "extra"])
def test_a_damaged_generation_is_passed_over_and_named(tmp_path: Path, what: str) -> None:
    loader, trained = Loader(), engines()
    with handler(tmp_path, keep=milepost.Keep(last=2)) as each:
        run(each, trained, loader, 6)
    damage(each.root, 2, what)
    again, loader = engines(seed=2), Loader()
    with handler(tmp_path, keep=milepost.Keep(last=2)) as each:
        info = each.load(again, dataloader=loader)
        assert info is not None
        assert (info.step, loader.position) == (2, 3)
        assert info.exact
        assert len(info.skipped) == 1
        assert info.skipped[0].startswith("generation 2 damaged")
        run(each, again, loader, 6, 3)
    assert digest(again) == digest(trained)


def test_after_a_load_that_has_failed_half_way_nothing_is_saved_until_one_succeeds(tmp_path: Path) -> None:
    saved(tmp_path)
    root = handler(tmp_path).root
    shutil.copytree(root, tmp_path / "copy")
    damage(root, 2, "ref/policy")
    trained = engines(seed=3)
    with handler(tmp_path) as each:
        with pytest.raises(CorruptError, match="this is not taken for a fresh start"):
            each.load(trained)
        for _ in range(2):
            with pytest.raises(UsageError, match="half old and half new") as caught:
                each.dump(trained, at(9), force=True)
            assert caught.value.kind == "half-loaded"
        shutil.copytree(tmp_path / "copy/blobs", Path(root) / "blobs", dirs_exist_ok=True)
        assert each.load(trained) is not None
        assert each.dump(trained, at(6), force=True)


def test_a_generation_that_is_asked_for_by_its_number_is_the_one_or_none(tmp_path: Path) -> None:
    saved(tmp_path, keep=milepost.Keep(last=9))
    with handler(tmp_path, keep=milepost.Keep(last=9)) as each:
        info = each.load(engines(), which=1)
        assert info is not None
        assert info.step == 2
        with pytest.raises(NotFoundError):
            each.load(engines(), which=7)
        damage(each.root, 2)
        with pytest.raises(CorruptError):
            each.load(engines(), which=2)


class Sampler:
    """Be the side that samples: note what it is told, and draw random numbers meanwhile."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def pause(self) -> None:
        self.told.append("pause")

    def update_weights(self, update: WeightUpdate) -> None:
        torch.randn(5)
        weights = {name: tensor.clone() for name, tensor in update.state().items()}
        self.told.append((update.version, update.step, update.generation, update.engine, weights))

    def resume(self) -> None:
        self.told.append("resume")


def test_sampling_stands_still_from_before_the_first_change_until_it_has_the_restored_weights(tmp_path: Path) -> None:
    trained, loader = engines(), Loader()
    with handler(tmp_path) as each:
        run(each, trained, loader, 3)
        each.wait()
        was = digest(trained, loader)
    again, loader, sampler = engines(seed=2), Loader(), Sampler()
    with handler(tmp_path) as each:
        each.load(again, dataloader=loader, inference=sampler)
    assert digest(again, loader) == was  # whatever sampling has drawn: generators come last
    pause, (version, step, generation, engine, weights), resume = sampler.told
    assert (pause, version, step, generation, engine, resume) == ("pause", 3, 2, 1, "default", "resume")
    state = trained["default"].model.state_dict()
    assert all(torch.equal(weights[name], state[name]) for name in weights)
    assert "out.weight" in weights


def test_sampling_stays_paused_after_a_load_that_has_failed_and_is_not_paused_for_one_that_changes_nothing(
    tmp_path: Path,
) -> None:
    saved(tmp_path)
    sampler = Sampler()
    with handler(tmp_path) as each, pytest.raises(MismatchError):
        each.load({"default": TrainEngine(torch.nn.Linear(1, 1))}, inference=sampler)
    assert sampler.told == []
    damage(handler(tmp_path).root, 2, "ref/policy")
    with handler(tmp_path) as each, pytest.raises(CorruptError):
        each.load(engines(), inference=sampler)
    assert sampler.told == ["pause"]
    with handler(tmp_path / "empty") as each:
        each.load(engines(), inference=(nothing := Sampler()))
    assert nothing.told == []


def test_what_counts_steps_comes_back_and_one_that_has_not_seen_the_step_is_refused(tmp_path: Path) -> None:
    trained, loader = engines(), Loader()
    evaluated: list[int] = []

    def steps(first: int, last: int, each: RecoverHandler, evaluator: Evaluator, saver: Saver) -> None:
        for step in range(first, last):
            train(trained, loader)
            if evaluator.due(at(step)):
                evaluated.append(step)
                evaluator.evaluated(at(step))
            each.dump(trained, at(step), dataloader=loader, evaluator=evaluator, saver=saver, force=step == 4)

    def parts() -> tuple[Evaluator, Saver]:
        return Evaluator(freq_steps=4), Saver(tmp_path, experiment="ppo", trial="t1", user="ann")

    evaluator, saver = parts()
    with handler(tmp_path, freq_steps=None) as each:
        steps(0, 6, each, evaluator, saver)
    evaluator, saver = parts()
    with handler(tmp_path, freq_steps=None) as each:
        info = each.load(trained, dataloader=loader, evaluator=evaluator, saver=saver)
        assert info is not None
        steps(5, 13, each, evaluator, saver)
        assert evaluated == [3, 7, 11]  # AReaL's drift by one with each resume
        with pytest.raises(UsageError, match="this step is not over yet"):
            each.dump(trained, at(13), evaluator=evaluator, force=True)


class Counter:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_the_users_own_things_come_back_by_name_and_a_missing_one_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = engines()
    with handler(tmp_path) as each:
        each.dump(trained, at(0), extra={"a": Counter(1), "b": Counter(2)}, stats_logger=Counter(3), force=True)
    a, c, stats = Counter(), Counter(9), Counter()
    with handler(tmp_path) as each, caplog.at_level(logging.WARNING, "milepost"):
        info = each.load(trained, extra={"a": a, "c": c}, stats_logger=stats)
    assert (a.value, c.value, stats.value) == (1, 9, 3)
    assert info is not None
    assert len(info.warnings) == 2
    assert "extra/b: saved something, here nothing" in caplog.text
    with handler(tmp_path) as each, pytest.raises(UsageError, match="needs state_dict"):
        each.load(trained, extra={"a": 1})  # type: ignore[dict-item]


def test_a_closed_handler_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    each = handler(tmp_path)
    each.load(engines())
    each.close()
    each.close()
    for call in (lambda: each.load(engines()), lambda: each.dump(engines(), at(0)), each.wait):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_with_a_key_all_is_signed_and_nothing_else_is_read(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    for path, byte in ((key, b"k"), (other, b"o")):
        path.write_bytes(byte * 32)
        path.chmod(0o600)
    trained = engines()
    with handler(tmp_path, key_file=key) as each:
        each.dump(trained, at(0), force=True)
    with handler(tmp_path, key_file=key) as each:
        assert each.load(trained) is not None
    with handler(tmp_path, key_file=other) as each, pytest.raises(milepost.MilepostError):
        each.load(trained)
    assert milepost.verify(each.root, key_file=key).ok
    saved(tmp_path / "unsigned")
    with handler(tmp_path / "unsigned", key_file=key) as each, pytest.raises(milepost.MilepostError):
        each.load(trained)


@pytest.mark.parametrize("call", ["load", "dump"])
def test_what_is_no_engine_is_refused_before_the_directory_is_made(tmp_path: Path, call: str) -> None:
    given: list[Any] = [
        {"default": torch.nn.Linear(2, 2)},
        TrainEngine(torch.nn.Linear(2, 2)),
        torch.nn.Linear(2, 2),
        ["default"],
    ]
    with handler(tmp_path) as each:
        for engines in given:
            with pytest.raises(UsageError, match="each as a TrainEngine") as caught:
                each.load(engines) if call == "load" else each.dump(engines, at(0))
            assert caught.value.kind == "bad-engines"
    assert not [*tmp_path.rglob("milepost.json")]
