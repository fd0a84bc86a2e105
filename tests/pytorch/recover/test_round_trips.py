"""What was saved comes back, to the last bit, whatever a model and an optimizer keep. A6, A7"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from milepost.errors import MismatchError, UsageError
from milepost.pytorch import RecoverHandler, TrainEngine
from tests.pytorch.recover.training import Actor, Loader, at, digest, engines, run, train

ALL = ("default", "critic", "ref")
MODES: dict[str, dict[str, Any]] = {
    "sync": dict.fromkeys(ALL, "sync"),
    "async": dict.fromkeys(ALL, "async"),
    "mixed": {"default": "async", "critic": "sync", "ref": "async"},
}


def handler(place: Path, **more: Any) -> RecoverHandler:
    settings: dict[str, Any] = {"mode": "on", "freq_steps": 3, "retries": 0, "timeout_s": 100, **more}
    return RecoverHandler(place, experiment="ppo", trial="t1", user="ann", **settings)


def undisturbed(steps: int) -> str:
    trained, loader = engines(), Loader()
    for _ in range(steps):
        train(trained, loader)
    return digest(trained, loader)


@pytest.mark.parametrize("modes", MODES)
def test_a_run_that_is_resumed_ends_with_the_bits_of_one_left_alone(tmp_path: Path, modes: str) -> None:
    trained, loader = engines(modes=MODES[modes]), Loader()
    with handler(tmp_path) as first:
        assert first.load(trained, dataloader=loader) is None
        run(first, trained, loader, 8)
    again, loader = engines(seed=9, modes=MODES[modes]), Loader()
    torch.manual_seed(77)
    with handler(tmp_path) as second:
        info = second.load(again, dataloader=loader)
        assert info is not None
        assert info.exact
        assert info.step == 5
        assert info.last_step_info == at(5)
        run(second, again, loader, 12, info.last_step_info.next().global_step)
        second.wait()
        newest = second.newest
    assert digest(again, loader) == undisturbed(12)
    assert newest is not None
    assert newest.step == 11
    assert milepost.verify(second.root).ok


def test_saving_changes_no_bit_of_training(tmp_path: Path) -> None:
    trained, loader = engines(), Loader()
    with handler(tmp_path, freq_steps=1) as each:
        run(each, trained, loader, 6)
    assert digest(trained, loader) == undisturbed(6)


def test_an_optimizer_that_has_made_no_step_is_saved_without_a_state_and_comes_back_without_one(tmp_path: Path) -> None:
    def start() -> tuple[dict[str, TrainEngine], Loader]:
        return engines(), Loader()

    alone, loader = start()
    for step in range(6):
        train(alone, loader, critic=step >= 4)
    trained, other = start()
    with handler(tmp_path, freq_steps=None) as first:
        for step in range(6):
            train(trained, other, critic=step >= 4)
            if step in (0, 3):  # before the critic's first step, twice: torch's own get_state_dict would have made one
                first.dump(trained, at(step), dataloader=other, force=True)
    assert digest(trained, other) == digest(alone, loader)
    again, other = start()
    critic = again["critic"].optimizer
    assert critic is not None
    again["critic"].model(torch.ones(1, 4)).sum().backward()
    critic.step()
    assert critic.state
    with handler(tmp_path) as second:
        info = second.load(again, dataloader=other)
        assert info is not None
        assert info.step == 3
        assert not critic.state
        for _ in range(2):
            train(again, other)
    assert digest(again, other) == digest(alone, loader)


def test_tied_weights_stay_tied_and_buffers_that_are_not_saved_stay_as_they_are(tmp_path: Path) -> None:
    trained, loader = engines(), Loader()
    with handler(tmp_path) as first:
        run(first, trained, loader, 3)
    again = engines(seed=5)
    actor = again["default"].model
    assert isinstance(actor, Actor)
    actor.cache.fill_(4.5)
    with handler(tmp_path) as second:
        second.load(again, dataloader=Loader())
    assert actor.first.weight is actor.tied.weight
    assert actor.cache.tolist() == [4.5] * 4
    assert actor.calls == [3]
    assert again["default"].optimizer is not None
    rates = [group["lr"] for group in again["default"].optimizer.param_groups]
    assert rates[0] == pytest.approx(3 * rates[1])
    assert rates[1] < 1e-2


def _bfloat(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Keep moments in another dtype than the weights, as mixed precision does."""

    class Mixed(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state.setdefault("master", parameter.detach().float().clone())
                    state["master"] -= 0.01 * parameter.grad.float()
                    parameter.data.copy_(state["master"])

    return Mixed(model.to(torch.bfloat16).parameters(), lr=0.1)


OPTIMIZERS: dict[str, Callable[[torch.nn.Module], torch.optim.Optimizer]] = {
    "LBFGS": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=3),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters()),
    "Adam, lr a tensor": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), amsgrad=True),
    "SGD without momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "by name": lambda model: torch.optim.Adam(model.named_parameters(), lr=0.1),
    "bfloat16 weights, float32 moments": _bfloat,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_kind_of_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str, mode: Any) -> None:
    def start(seed: int) -> TrainEngine:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 1))
        return TrainEngine(model, OPTIMIZERS[name](model), save_mode=mode)

    def steps(engine: TrainEngine, first: int, last: int) -> None:
        for step in range(first, last):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(engine.model[0].weight.dtype)  # type: ignore[index, union-attr]

            def loss(x: torch.Tensor = x) -> torch.Tensor:
                assert engine.optimizer is not None
                engine.optimizer.zero_grad()
                found = engine.model(x).square().mean()
                found.backward()
                return found  # type: ignore[no-any-return]

            assert engine.optimizer is not None
            loss()
            engine.optimizer.step(loss)

    engine = start(1)
    steps(engine, 0, 4)
    with handler(tmp_path) as first:
        first.dump({"default": engine}, at(3), force=True)
        steps(engine, 4, 7)
    again = start(2)
    with handler(tmp_path) as second:
        second.load({"default": again})
    steps(again, 4, 7)
    assert digest({"default": again}) == digest({"default": engine})


def test_a_schedule_that_was_not_saved_is_kept_and_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with handler(tmp_path) as first:
        first.dump({"default": TrainEngine(model, optimizer)}, at(0), force=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    with handler(tmp_path) as second, caplog.at_level(logging.WARNING, "milepost"):
        info = second.load({"default": TrainEngine(model, optimizer, schedule)})
    assert info is not None
    assert info.warnings == ("default/lr_scheduler: saved nothing, here a schedule, which stays as it is",)
    assert "which stays as it is" in caplog.text
    assert schedule.last_epoch == 0


def _scheduled(steps: int) -> dict[str, TrainEngine]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"default": TrainEngine(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))}


def test_another_schedule_is_an_error_until_it_is_accepted_and_then_it_holds(tmp_path: Path) -> None:
    trained = _scheduled(10)
    with handler(tmp_path) as first:
        assert trained["default"].optimizer is not None
        trained["default"].optimizer.step()
        trained["default"].lr_scheduler.step()
        first.dump(trained, at(0), force=True)
    longer = _scheduled(40)
    before = digest(longer)
    with handler(tmp_path) as second:
        with pytest.raises(MismatchError, match="T_max: saved 10, here 40"):
            second.load(longer)
        assert digest(longer) == before
    with handler(tmp_path, on_mismatch={"schedule": "warn"}) as third:
        info = third.load(longer)
    assert info is not None
    assert len(info.warnings) == 1
    assert longer["default"].lr_scheduler.T_max == 40
    assert longer["default"].lr_scheduler.last_epoch == 1


def test_weights_only_restores_no_optimizer_and_no_schedule(tmp_path: Path) -> None:
    trained, loader = engines(), Loader()
    with handler(tmp_path) as first:
        run(first, trained, loader, 3)
    again = engines(seed=4)
    with handler(tmp_path, with_optim=False) as second:
        info = second.load(again, dataloader=Loader())
    assert info is not None
    assert not info.exact
    for name in ALL:
        for one, other in zip(again[name].model.state_dict().values(), trained[name].model.state_dict().values(), strict=True):
            assert not isinstance(one, torch.Tensor) or torch.equal(one, other)
    assert again["default"].optimizer is not None
    assert not again["default"].optimizer.state
    assert again["default"].lr_scheduler.last_epoch == 0


def test_an_optimizer_of_a_tensor_that_no_model_has_is_refused(tmp_path: Path) -> None:
    alpha = torch.nn.Parameter(torch.zeros(()))
    model = torch.nn.Linear(2, 1)
    engine = TrainEngine(model, torch.optim.SGD([*model.parameters(), alpha], lr=0.1))
    with handler(tmp_path) as first, pytest.raises(UsageError, match="no parameter of its engine's model"):
        first.dump({"default": engine}, at(0), force=True)


def test_a_model_in_ddp_or_compiled_has_the_names_of_one_that_is_not(tmp_path: Path) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)), backend="eager")
    assert isinstance(compiled, torch.nn.Module)
    with handler(tmp_path) as first:
        first.dump({"default": TrainEngine(compiled, torch.optim.Adam(compiled.parameters()))}, at(0), force=True)
    with handler(tmp_path) as second:
        second.load({"default": TrainEngine(plain, torch.optim.Adam(plain.parameters()))})
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.equal(one, other)
