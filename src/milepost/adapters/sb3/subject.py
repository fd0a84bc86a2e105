"""Know what one ``learn()`` call consists of: the model, its callbacks, its settings, and our own marks beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from milepost import envs
from milepost.envs.attributes import arguments_of
from milepost.envs.plain import LeftOut, class_name

# A resume is exact whatever seed the constructor drew from: every generator is overwritten.
TOLD_ELSEWHERE = {"env", "policy", "tensorboard_log", "verbose", "device", "action_noise", "seed"}


@dataclass(slots=True)
class Marks:
    """Hold what the adapter itself counts. It travels with the checkpoint."""

    learn: int = 0
    ended: bool = False
    total: int = 0
    ends: list[int] = field(default_factory=list)
    """The step at which each completed ``learn()`` ended, by ordinal."""
    episodes: int = 0
    rounds: int = 0
    """How many rollouts of this call are over."""
    reported: dict[str, int] = field(default_factory=dict)
    """For each evaluation callback, the call that was reported last."""

    def counters(self, model: BaseAlgorithm) -> dict[str, int]:
        """Return what a generation's summary says, so that a start can be decided without loading anything."""
        ended = {"learn": self.learn, "ended": int(self.ended), "total": self.total}
        return {**ended, "episodes": self.episodes, "rounds": self.rounds, "updates": model._n_updates}


@dataclass(slots=True)
class Subject:
    """Hold one ``learn()`` call's objects."""

    model: BaseAlgorithm
    root: BaseCallback
    ours: BaseCallback
    marks: Marks
    evaluations: list[tuple[str, EvalCallback]]
    workers: Any = None
    """The processes that evaluate the candidates of an augmented random search, where the script has any."""
    left_out: dict[str, tuple[LeftOut, ...]] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)
    """The class of each optimizer when it was first seen."""

    @property
    def environments(self) -> tuple[Any, ...]:
        """Return the envs of training and of its evaluations, whose workers are not to end before training does."""
        return self.model.env, *(callback.eval_env for _, callback in self.evaluations)


def configured(owner: object) -> frozenset[str]:
    """Return the attributes of ``owner`` which its constructors' arguments set."""
    names = arguments_of(type(owner))  # type: ignore[arg-type] # a class can be hashed, whatever its objects are
    return frozenset(name for name in vars(owner) if name.lstrip("_") in names)


def optimizers(model: BaseAlgorithm) -> dict[str, torch.optim.Optimizer]:
    """Return every optimizer of the model and of the modules in its policy, each once, by where it is held."""
    owners: list[tuple[str, object]] = [("", model)]
    owners += [(f"{name}." if name else "policy.", module) for name, module in model.policy.named_modules()]
    found: dict[str, torch.optim.Optimizer] = {}
    for prefix, owner in owners:
        for name, value in vars(owner).items():
            if isinstance(value, torch.optim.Optimizer) and value not in found.values():
                found[prefix + name] = value
    return found


def replaced_optimizers(subject: Subject) -> list[LeftOut]:
    """Return the optimizers in whose place training has put one of another class: the script makes the first one again."""
    now = {name: class_name(found) for name, found in optimizers(subject.model).items()}
    first = {name: subject.optimizers.setdefault(name, found) for name, found in now.items()}
    reason = "training has put an optimizer of another class here, and the script makes the first one again"
    return [LeftOut(f"optimizer.{name}", reason) for name in now if now[name] != first[name]]


def own_modules(model: BaseAlgorithm) -> dict[str, nn.Module]:
    """Return the modules held by the model itself: its policy, and those which are not part of it."""
    inside = set(map(id, model.policy.modules()))
    others = {name: value for name, value in vars(model).items() if isinstance(value, nn.Module) and id(value) not in inside}
    return {"policy": model.policy, **others}


def own_parameters(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    """Return the learned tensors held by the model itself: SAC's ``log_ent_coef``."""
    return {name: value for name, value in vars(model).items() if isinstance(value, torch.Tensor) and value.requires_grad}


def learned(model: BaseAlgorithm) -> set[int]:
    """Return the ids of the modules, their tensors, the optimizers and learned tensors that components of their own hold."""
    owners = own_modules(model).values()
    modules = (module for owner in owners for module in owner.modules())
    tensors = (tensor for owner in owners for tensor in owner.state_dict(keep_vars=True).values())
    return {id(value) for value in (*modules, *tensors, *optimizers(model).values(), *own_parameters(model).values())}


def held_elsewhere(owner: object, ids: set[int]) -> set[str]:
    """Return the attributes of ``owner`` that are among ``ids``, or lists of such."""
    return {
        name
        for name, value in vars(owner).items()
        if id(value) in ids or (isinstance(value, (list, tuple)) and bool(value) and all(id(item) in ids for item in value))
    }


def normalizers(env: VecEnv | None) -> Iterator[VecNormalize]:
    """Yield the normalizing wrappers of the training env, outermost first."""
    while env is not None:
        if isinstance(env, VecNormalize):
            yield env
        env = getattr(env, "venv", None)


def depends_on_total(model: BaseAlgorithm) -> bool:
    """Return whether any schedule moves with the progress towards ``total_timesteps``."""
    return any(_moves(value) for value in vars(model).values())


def _moves(schedule: object) -> bool:
    if isinstance(schedule, FloatSchedule):
        return not isinstance(schedule.value_schedule, ConstantSchedule)
    return isinstance(schedule, LinearSchedule) and schedule.start != schedule.end


def fingerprint(subject: Subject) -> dict[str, str]:
    """Return what must be equal for the same bits to come out, beside what the engine records of versions and machine."""
    model = subject.model
    settings = {name: setting_text(vars(model)[name]) for name in configured(model) if not name.startswith("_")}
    found = {f"code/settings/{name}": text for name, text in settings.items() if text and name not in TOLD_ELSEWHERE}
    found["code/policy"], found["code/device"] = class_name(model.policy), str(model.device)
    found["env/layers"] = envs.describe(model.env)
    if depends_on_total(model):
        found["schedule/total_timesteps"] = str(subject.marks.total)
    return found


def setting_text(value: object) -> str:
    """Return what a fingerprint says of a setting; empty for what has no text that stays the same."""
    text = f"{type(value).__module__}.{value.__qualname__}" if isinstance(value, type) else repr(value)
    return "" if " at 0x" in text or len(text) > 200 else text
