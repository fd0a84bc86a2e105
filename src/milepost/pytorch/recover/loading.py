"""Bring a whole training back. `load` is the story: choose, compare, hold sampling still, overwrite, hand over, go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from milepost.engine.mismatch import Mismatches
from milepost.errors import CorruptError, MismatchError
from milepost.lifecycle.recover import Skipped
from milepost.pytorch import dcp
from milepost.pytorch.dcp.choosing import Which
from milepost.pytorch.recover import payload
from milepost.pytorch.recover.beside import Beside, Part, put_rng
from milepost.pytorch.recover.engines import TrainEngine
from milepost.pytorch.recover.inference import Gathering, Inference, WeightUpdate
from milepost.pytorch.recover.info import RecoverInfo
from milepost.pytorch.recover.models import model_state, names_of, put_model
from milepost.pytorch.recover.optimizers import GROUPS, STATE, group_differences, like, put_optimizer
from milepost.pytorch.recover.payload import LR_SCHEDULER, MODEL, OPTIM
from milepost.pytorch.recover.reading import Choosing, Found, Path, nested
from milepost.pytorch.recover.schedule import Settings, compare, fingerprint
from milepost.pytorch.steps import StepInfo
from milepost.records import Difference
from milepost.state.rng import Rng

log = logging.getLogger("milepost")


@dataclass(slots=True)
class Loading:
    """Hold what a load works with."""

    choosing: Choosing
    engines: Mapping[str, TrainEngine]
    beside: Beside
    rng: Rng
    ticks: Part
    mismatches: Mismatches
    inference: Inference | None
    with_optim: bool
    group: dist.ProcessGroup | None
    changed: bool = False
    """Something may have been overwritten."""
    settings: list[Settings] = field(default_factory=list)
    """Of the schedules here that are not those that were saved."""
    warnings: list[str] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)

    def load(self, which: Which) -> RecoverInfo | None:
        """Load the newest generation that is sound, or the one asked for; None if there is nothing. The same on all ranks.

        Raises `MismatchError` before anything is changed; what fails after that leaves the state half loaded (`changed`).
        """
        rejected: list[Skipped] = []
        while (found := self.choosing.find(which, rejected)) is not None:
            self.warnings, self.inexact, self.settings = [], [], []
            step = self._compare(found)
            if not self.changed:
                self._pause()
            try:
                tensors = self._overwrite(found)
            except CorruptError as error:
                number = found.chosen.manifest.number
                if isinstance(which, int) or error.kind != "damaged-leaf":
                    raise
                rejected.append(Skipped(number, "damaged", error.message))
                continue
            self._together(self._put_back, found, tensors)
            info = self._hand_over(found, step, rejected)
            self.changed = False
            return info
        return None

    def _together(self, act: Callable[..., Any], *args: Any) -> Any:
        return self.choosing.ranks.together(act, *args)

    def _compare(self, found: Found) -> StepInfo:
        """Raise `MismatchError` on all ranks with what any of them finds not to fit."""
        step, differences = self._together(lambda: (payload.step_of(found.progress), self._differences(found)))
        by_rank = self.choosing.ranks.told_by_all(differences)
        every = list(dict.fromkeys(difference for some in by_rank for difference in some))
        self.warnings += self._together(self._judge, every, found.chosen.manifest.number)
        return step  # type: ignore[no-any-return]

    def _judge(self, differences: list[Difference], generation: int) -> list[str]:
        if self.choosing.ranks.is_first:
            self.mismatches.judge(differences, root=self.choosing.store.url, generation=generation)
        return [str(difference) for difference in differences]

    def _differences(self, found: Found) -> list[Difference]:
        there, here = list(found.progress["engines"]), list(self.engines)
        if set(there) != set(here):
            raise MismatchError(
                "these are not the engines that were saved",
                [Difference("engines", ", ".join(there), ", ".join(here), "missing")],
                kind="engines",
                hint="give handler.load the engines of the run, or choose another trial; nothing was changed",
                root=self.choosing.store.url,
                generation=found.chosen.manifest.number,
            )
        every = [one for name, engine in self.engines.items() for one in self._engine_differences(found, name, engine)]
        return every + self.beside.differences(found.progress, found.own) + self.beside.place_differences(self._place(found)[0])

    def _place(self, found: Found) -> tuple[Any, list[str]]:
        return self.beside.place(found.own, found.chosen.index.ranks, self.choosing.ranks)

    def _engine_differences(self, found: Found, name: str, engine: TrainEngine) -> list[Difference]:
        differences = _model_differences(found, name, engine)
        if not self.with_optim:
            return differences
        saved = found.below(name, OPTIM)
        has, path = any(key[0] == GROUPS for key in saved), f"{name}/optimizer"
        if has != (engine.optimizer is not None):
            sides = ("an optimizer", "none") if has else ("no optimizer", "one")
            differences.append(Difference(path, *sides, "missing"))
        elif engine.optimizer is not None:
            names = names_of(engine.model)
            differences += group_differences(path, nested(saved)[GROUPS], engine.optimizer, names)
        return differences + self._schedule_differences(found, name, engine.lr_scheduler)

    def _schedule_differences(self, found: Found, name: str, scheduler: Any) -> list[Difference]:
        path = f"{name}/lr_scheduler"
        if not found.below(name, LR_SCHEDULER):
            here = [] if scheduler is None else ["a schedule, which stays as it is"]
            return [Difference(path, "nothing", each, "missing-optional") for each in here]
        saved = found.progress.get("schedules", {}).get(name)
        if saved is None and scheduler is None:
            return [Difference(path, "a schedule", "none", "schedule")]
        compared = compare(path, saved, fingerprint(scheduler))
        self.inexact += compared.not_compared
        self.warnings += compared.doubtful
        if compared.differences:
            self.settings.append(Settings(scheduler))
        return list(compared.differences)

    def _pause(self) -> None:
        if self.inference is not None:
            self._together(self.inference.pause)

    def _overwrite(self, found: Found) -> dict[str, dict[Path, torch.Tensor]]:
        """Load all tensors through DCP, in place; return those of optimizers, by engine."""
        moments = self._together(self._moments, found)
        state: dict[str, Any] = {}
        for name, engine in self.engines.items():
            weights = {fqn: value for fqn, value in model_state(engine.model).items() if isinstance(value, torch.Tensor)}
            state[name] = {MODEL: weights, OPTIM: nested(moments[name])}
        store, number, choosing = self.choosing.store, found.chosen.manifest.number, self.choosing
        self.changed = True
        restored = dcp.load(
            state,
            store,
            which=number,
            process_group=self.group,
            no_dist=choosing.ranks.count == 1,
            trust_pickle=choosing.trust_pickle,
        )
        self.inexact += restored.inexact
        return moments  # type: ignore[no-any-return]

    def _moments(self, found: Found) -> dict[str, dict[Path, torch.Tensor]]:
        made: dict[str, dict[Path, torch.Tensor]] = {}
        for name, engine in self.engines.items():
            parameters = {fqn: parameter for parameter, fqn in names_of(engine.model).items()}
            wanted = found.tensors_below(name, OPTIM) if self.with_optim else {}
            made[name] = {
                path: like(described, parameters.get(str(path[1])) if path[0] == STATE else None)
                for path, described in wanted.items()
            }
        return made

    def _put_back(self, found: Found, moments: Mapping[str, dict[Path, torch.Tensor]]) -> None:
        for name, engine in self.engines.items():
            put_model(engine.model, {**model_state(engine.model), **nested(found.below(name, MODEL))})
            if not self.with_optim:
                self.inexact.append(f"{name}: optimizer and schedule were not asked for, and stay as they are")
                continue
            if engine.optimizer is not None:
                saved = nested({**found.below(name, OPTIM), **moments[name]})
                put_optimizer(engine.optimizer, saved, names_of(engine.model), name)
            schedule = found.below(name, LR_SCHEDULER)
            if engine.lr_scheduler is not None and schedule:
                engine.lr_scheduler.load_state_dict(schedule[()])
        for settings in self.settings:
            settings.put_back()  # they differ, and that was let pass: what holds is what the script says now
        self.beside.put_back(found.progress)
        if "handler" in found.progress:
            self.ticks.load_state_dict(found.progress["handler"])
        place, why = self._place(found)
        self.beside.put_data(place)
        self.inexact += why + self.beside.put_extra(found.own)

    def _hand_over(self, found: Found, step: StepInfo, rejected: list[Skipped]) -> RecoverInfo:
        """Give restored weights to who samples with them; generators come last, since all before may have drawn."""
        manifest = found.chosen.manifest
        if self.inference is not None:
            engine = payload.ACTOR if payload.ACTOR in self.engines else next(iter(self.engines))
            model = self.engines[engine].model
            gathering = Gathering(self.choosing.ranks, lambda: whole(model)) if is_sharded(model) else None
            state = gathering.state if gathering is not None else lambda: whole(model)
            update = WeightUpdate(step.next().global_step, step.global_step, manifest.run_id, manifest.number, engine, state)
            self._together(_tell, self.inference, update, gathering)
        self.inexact += self._together(put_rng, self.rng, found.own, found.chosen.index.ranks, self.choosing.ranks)
        inexact = [one for some in self.choosing.ranks.told_by_all(self.inexact) for one in some]
        info = RecoverInfo(
            step,
            manifest.number,
            manifest.run_id,
            tuple(dict.fromkeys(inexact)),
            tuple(dict.fromkeys(map(str, [*found.chosen.skipped, *rejected]))),
            tuple(self.warnings),
        )
        if self.inference is not None:
            self._together(self.inference.resume)
        return info


def _tell(inference: Inference, update: WeightUpdate, gathering: Gathering | None) -> None:
    try:
        inference.update_weights(update)
    finally:
        if gathering is not None:
            gathering.end()


def _model_differences(found: Found, name: str, engine: TrainEngine) -> list[Difference]:
    described, values = found.tensors_below(name, MODEL), found.below(name, MODEL)
    live, path = model_state(engine.model), f"{name}/policy"
    saved = {str(key[0]) for key in (*described, *values)}
    differences = [Difference(f"{path}/{fqn}", "nothing", "something", "missing") for fqn in live if fqn not in saved]
    differences += [Difference(f"{path}/{fqn}", "something", "nothing", "unexpected") for fqn in sorted(saved - live.keys())]
    for fqn, tensor in live.items():
        there = described.get((fqn,))
        if there is None or not isinstance(tensor, torch.Tensor):
            continue
        if tuple(there.size) != tuple(tensor.shape):
            differences.append(Difference(f"{path}/{fqn}", str([*there.size]), str([*tensor.shape]), "shape"))
        if there.properties.dtype != tensor.dtype:
            differences.append(Difference(f"{path}/{fqn}", str(there.properties.dtype), str(tensor.dtype), "dtype"))
    return differences


@torch.no_grad()
def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return all weights, whole; sharded ones are gathered, on all ranks together."""
    state = {fqn: value for fqn, value in model_state(model).items() if isinstance(value, torch.Tensor)}
    return {fqn: value.full_tensor() if isinstance(value, DTensor) else value for fqn, value in state.items()}


def is_sharded(model: torch.nn.Module) -> bool:
    """Say whether a rank needs the others for whole weights."""
    return any(isinstance(value, DTensor) for value in model_state(model).values())
