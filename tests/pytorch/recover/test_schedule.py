"""A schedule that is not the one which was saved is told, with every difference; what moves in training is none."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, lr_scheduler
from torch.optim.swa_utils import SWALR

from milepost.errors import CorruptError
from milepost.pytorch.recover.schedule import Compared, Settings, compare, fingerprint
from milepost.state.tree import flatten

WARMUP = 10


def optimizer(lr: float = 0.1, kind: Any = SGD, **more: Any) -> Any:
    net = torch.nn.Linear(2, 2)
    groups = [{"params": [net.weight]}, {"params": [net.bias], "lr": lr / 2}]
    return kind(groups, lr=lr, **({"momentum": 0.9} if kind is SGD else {}), **more)


class Warm(lr_scheduler.LRScheduler):
    """A schedule of a user's own."""

    def __init__(self, optimizer: Any, warmup_steps: int, peak: float = 1.0) -> None:
        self.warmup_steps, self._peak, self.half, self.calls = warmup_steps, peak, warmup_steps // 2, 0
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        self.calls += 1
        return [base * min(1.0, (self.last_epoch + 1) / self.warmup_steps) * self._peak for base in self.base_lrs]


class Cosine:
    """A callable with settings, as LambdaLR saves them, and a counter."""

    def __init__(self, total: int) -> None:
        self.total, self.asked = total, 0

    def __call__(self, step: int) -> float:
        self.asked += 1
        return 0.5 * (1 + math.cos(math.pi * step / self.total))


class Megatron:
    """A scheduler that is no kin of torch's."""

    def __init__(self, optimizer: Any, max_lr: float, lr_decay_steps: int) -> None:
        self.optimizer, self.max_lr, self.lr_decay_steps, self.num_steps = optimizer, max_lr, lr_decay_steps, 0

    def step(self) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "max_lr": self.max_lr}


def linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Be a schedule as transformers makes them."""
    if step < num_warmup_steps:
        return step / max(1, num_warmup_steps)
    return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))


def warmed(step: int) -> float:
    return min(1.0, step / WARMUP)


def closing_over(config: Any) -> Callable[[int], float]:
    return lambda step: min(1.0, step / config.warmup)


def looking_up(config: dict[str, Any]) -> Callable[[int], float]:
    return lambda step: min(1.0, step / config["warmup"])


def sequential(o: Any, *, milestone: int = 3, T_max: int = 10) -> Any:  # noqa: N803 - torch's name
    parts = [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, T_max)]
    return lr_scheduler.SequentialLR(o, parts, [milestone])


def chained(o: Any, gamma: float = 0.9) -> Any:
    return lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, gamma)])


def transformers_like(o: Any, total: int) -> Any:
    return lr_scheduler.LambdaLR(o, partial(linear, num_warmup_steps=2, num_training_steps=total))


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], set[str]]] = {
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 3), lambda o: lr_scheduler.StepLR(o, 4, gamma=0.5), {"step_size", "gamma"}),
    "MultiStepLR": (
        lambda o: lr_scheduler.MultiStepLR(o, [3, 5]),
        lambda o: lr_scheduler.MultiStepLR(o, [3, 6]),
        {"milestones"},
    ),
    "ConstantLR": (
        lambda o: lr_scheduler.ConstantLR(o, 0.5),
        lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=9),
        {"total_iters"},
    ),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, 0.5), lambda o: lr_scheduler.LinearLR(o, 0.25), {"start_factor"}),
    "ExponentialLR": (
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: lr_scheduler.ExponentialLR(o, 0.99),
        {"gamma"},
    ),
    "SequentialLR": (sequential, partial(sequential, T_max=20), {"_schedulers[1].T_max"}),
    "SequentialLR, milestone": (sequential, partial(sequential, milestone=4), {"_milestones"}),
    "CosineAnnealingLR": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 5, eta_min=0.01),
        {"eta_min"},
    ),
    "ChainedScheduler": (chained, partial(chained, gamma=0.5), {"_schedulers[1].gamma"}),
    "ReduceLROnPlateau": (
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2, mode="max"),
        {"patience", "mode"},
    ),
    "CyclicLR": (
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0),
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 2.0),
        {"max_lrs"},
    ),
    "CyclicLR, scale": (
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, scale_fn=lambda x: 1 / x),
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, scale_fn=lambda x: 2 / x),
        {"_scale_fn_custom:constants"},
    ),
    "CosineAnnealingWarmRestarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
        {"T_mult"},
    ),
    "OneCycleLR": (
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=50),
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=50, final_div_factor=10.0),
        {"group[0].min_lr", "group[1].min_lr"},
    ),
    "OneCycleLR, total": (
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, epochs=5, steps_per_epoch=10),
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=60),
        {"total_steps", "_schedule_phases[0]", "_schedule_phases[1]"},
    ),
    "PolynomialLR": (
        lambda o: lr_scheduler.PolynomialLR(o, 50),
        lambda o: lr_scheduler.PolynomialLR(o, 50, power=2.0),
        {"power"},
    ),
    "SWALR": (lambda o: SWALR(o, 0.05), lambda o: SWALR(o, 0.06), {"group[0].swa_lr", "group[1].swa_lr"}),
    "MultiplicativeLR": (
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.8),
        {"lr_lambdas[*]:constants"},
    ),
    "LambdaLR, other code": (
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - step / 1),
        {"lr_lambdas[*]:code"},
    ),
    "LambdaLR, a list": (
        lambda o: lr_scheduler.LambdaLR(o, [lambda _: 0.9, lambda _: 0.8]),
        lambda o: lr_scheduler.LambdaLR(o, [lambda _: 0.9, lambda _: 0.7]),
        {"lr_lambdas[1]:constants"},
    ),
    "LambdaLR, a partial": (
        partial(transformers_like, total=100),
        partial(transformers_like, total=200),
        {"lr_lambdas[*].num_training_steps"},
    ),
    "LambdaLR, a closure": (
        lambda o: lr_scheduler.LambdaLR(o, closing_over(types.SimpleNamespace(warmup=3, seed=1))),
        lambda o: lr_scheduler.LambdaLR(o, closing_over(types.SimpleNamespace(warmup=4, seed=2))),
        {"lr_lambdas[*].config.warmup"},
    ),
    "LambdaLR, a dict": (
        lambda o: lr_scheduler.LambdaLR(o, looking_up({"warmup": 3, "seed": 1})),
        lambda o: lr_scheduler.LambdaLR(o, looking_up({"warmup": 4, "seed": 2})),
        {"lr_lambdas[*].config.warmup"},
    ),
    "LambdaLR, an object": (
        lambda o: lr_scheduler.LambdaLR(o, Cosine(100)),
        lambda o: lr_scheduler.LambdaLR(o, Cosine(200)),
        {"lr_lambdas[*].total"},
    ),
    "LambdaLR, a method": (
        lambda o: lr_scheduler.LambdaLR(o, Cosine(100).__call__),
        lambda o: lr_scheduler.LambdaLR(o, Cosine(200).__call__),
        {"lr_lambdas[*].self.total"},
    ),
    "a user's own": (lambda o: Warm(o, 4), lambda o: Warm(o, 4, peak=2.0), {"_peak"}),
    "no kin of torch's": (lambda o: Megatron(o, 1.0, 10), lambda o: Megatron(o, 1.0, 20), {"lr_decay_steps"}),
    "another class": (
        lambda o: lr_scheduler.StepLR(o, 3),
        lambda o: lr_scheduler.ExponentialLR(o, 0.1),
        {"class", "step_size"},
    ),
}


def told(saved: Any, live: Any) -> tuple[set[str], Compared]:
    found = compare("critic/lr_scheduler", saved, live)
    assert all(one.kind == "schedule" and one.path.startswith("critic/lr_scheduler.") for one in found.differences)
    return {one.path.removeprefix("critic/lr_scheduler.") for one in found.differences}, found


def train(scheduler: Any, steps: int) -> None:
    for step in range(steps):
        scheduler.optimizer.step()
        scheduler.step(1.0 + step) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_what_training_moves_is_no_difference_and_each_changed_setting_is_named(name: str) -> None:
    make, other, expected = KINDS[name]
    trained = make(optimizer())
    fresh = fingerprint(trained)
    train(trained, 12)
    paths, found = told(fingerprint(trained), fingerprint(make(optimizer())))
    assert not paths
    assert fingerprint(trained)["settings"] == fresh["settings"]
    assert not found.not_compared
    paths, found = told(fingerprint(trained), fingerprint(other(optimizer())))
    assert expected <= paths
    assert name.startswith(("another", "LambdaLR", "CyclicLR, scale", "Multiplicative")) or paths == expected


def test_every_scheduler_that_torch_has_is_in_the_table() -> None:
    named = {name.partition(",")[0] for name in KINDS}
    assert {name for name in lr_scheduler.__all__ if name not in named} == {"LRScheduler"}


@pytest.mark.parametrize("make", [sequential, lambda o: lr_scheduler.ReduceLROnPlateau(o), lambda o: Warm(o, 3)])
def test_another_learning_rate_is_another_schedule(make: Callable[[Any], Any]) -> None:
    paths, _ = told(fingerprint(make(optimizer(0.1))), fingerprint(make(optimizer(0.2))))
    assert any(path.endswith(("base_lrs", "optimizer.lr")) for path in paths)


def test_a_whole_number_and_a_float_of_that_value_and_a_tensor_are_one_setting() -> None:
    one = fingerprint(lr_scheduler.LinearLR(optimizer(0.5), 1, 1, 4))
    other = fingerprint(lr_scheduler.LinearLR(optimizer(0.5), 1.0, 1.0, 4))
    capturable = fingerprint(lr_scheduler.LinearLR(optimizer(torch.tensor(0.5), kind=AdamW), 1, 1, 4))  # type: ignore[arg-type]
    assert not told(one, other)[0]
    assert not told(one, capturable)[0]


def test_a_global_that_a_function_names_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = fingerprint(lr_scheduler.LambdaLR(optimizer(), warmed))
    monkeypatch.setitem(globals(), "WARMUP", 20)
    paths, found = told(saved, fingerprint(lr_scheduler.LambdaLR(optimizer(), warmed)))
    assert paths == {"lr_lambdas[*].WARMUP"}
    assert "saved 10, here 20" in str(found.differences[0])


def test_a_docstring_and_the_place_of_a_function_are_none() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    exec('def f(step):\n    "One."\n    return 0.5', spaces[0])
    exec('\n\ndef f(place):\n    "Two."\n    return 0.5', spaces[1])
    one, other = (fingerprint(lr_scheduler.LambdaLR(optimizer(), space["f"])) for space in spaces)
    assert not told(one, other)[0]


def test_what_may_be_a_counter_is_named_and_not_judged() -> None:
    trained = Warm(optimizer(), 4)
    train(trained, 5)
    paths, found = told(fingerprint(trained), fingerprint(Warm(optimizer(), 4)))
    assert not paths
    assert found.doubtful == (
        "critic/lr_scheduler.calls: saved 6, here 1: this may be a setting or a counter, and was not judged",
    )


@pytest.mark.parametrize(
    "config", [object(), torch.nn.Linear(2, 2), types.SimpleNamespace(warmup=object()), torch.zeros(100_000), {1: object()}]
)
def test_what_cannot_be_compared_is_named(config: Any) -> None:
    one = fingerprint(lr_scheduler.LambdaLR(optimizer(), lambda _: 1.0 if config is not None else config.warmup))
    paths, found = told(one, one)
    assert not paths
    assert any("lr_lambdas[*].config" in one and "not compared" in one for one in found.not_compared)


def test_functions_of_another_python_and_attributes_of_another_torch_are_named_and_not_judged() -> None:
    saved = fingerprint(lr_scheduler.LambdaLR(optimizer(), lambda _: 0.5))
    live = fingerprint(lr_scheduler.LambdaLR(optimizer(), lambda step: 0.25 * step))
    assert saved is not None
    assert told(saved, live)[0]
    paths, found = told({**saved, "python": "cpython-310"}, live)
    assert not paths
    assert any("lr_lambdas[*]:code" in one and "another version" in one for one in found.not_compared)
    more = {**saved, "torch": "9.0.0", "settings": {**saved["settings"], "fresh": "1"}}
    paths, found = told(more, saved)
    assert not paths
    assert any("fresh" in one for one in found.not_compared)


def test_a_schedule_of_which_only_the_state_was_saved_is_not_compared_and_that_is_said() -> None:
    live = fingerprint(lr_scheduler.StepLR(optimizer(), 3))
    assert fingerprint(None) is None
    assert compare("x", None, None) == Compared()
    assert compare("x", None, live).not_compared == (
        "x: its settings were not saved apart: not compared, and loaded with its state",
    )
    assert [str(one) for one in compare("x", live, None).differences] == ["x: saved torch.optim.lr_scheduler.StepLR, here none"]


@pytest.mark.parametrize(
    "wrong", [{}, {"version": 2}, {"version": 1, "settings": {"a": 1}}, [], {"version": 1, "settings": None}, "x", 3]
)
def test_what_is_no_fingerprint_is_refused(wrong: Any) -> None:
    with pytest.raises(CorruptError) as caught:
        compare("x", wrong, fingerprint(lr_scheduler.StepLR(optimizer(), 3)))
    assert caught.value.kind == "bad-schedule"


def test_a_fingerprint_is_small_plain_and_can_be_saved() -> None:
    holds = list(range(100_000))
    scheduler = lr_scheduler.LambdaLR(optimizer(), lambda step: holds[step])
    one = fingerprint(scheduler)
    assert len(str(one)) < 5_000
    flatten({"schedules": {"default": one}}, "counters")
    holds[70_000] = 0
    assert told(one, fingerprint(scheduler))[0] == {"lr_lambdas[*].holds"}


def test_a_function_that_calls_itself_and_others_is_told_once_in_each_place() -> None:
    def deep(step: int) -> float:
        return deep(step - 1) if step > 3 else shallow(step)

    def shallow(step: int) -> float:
        return deep(step) if step > 3 else 1.0

    scheduler = lr_scheduler.LambdaLR(optimizer(), deep)
    assert fingerprint(scheduler) == fingerprint(scheduler)
    assert "lr_lambdas[*].shallow:code" in fingerprint(scheduler)["settings"]  # type: ignore[index]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_settings_that_a_checkpoint_has_brought_are_put_back_and_its_progress_stays(name: str) -> None:
    make, other, _ = KINDS[name]
    if name in ("no kin of torch's", "another class"):
        return
    trained, live = make(optimizer()), other(optimizer())
    train(trained, 12)
    before, settings = fingerprint(live), Settings(live)
    live.optimizer.load_state_dict(trained.optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        live.load_state_dict(trained.state_dict())
    settings.put_back()
    assert not told(before, fingerprint(live))[0]
    assert getattr(live, "last_epoch", 0) == getattr(trained, "last_epoch", 0)
