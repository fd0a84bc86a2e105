"""Watch every generator that training draws from while milepost's callback works: it may move one only to bring it back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import EvalCallback

from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.callbacks import walk


class Watched(Checkpointing):
    """Fail where the callback has drawn a number, or made a generator that was not there."""

    def _on_training_start(self) -> None:
        before = self._generators()
        super()._on_training_start()
        assert self._ended_at is not None or self._generators() == before

    def _on_boundary(self) -> None:
        before, restores = self._generators(), self._due
        super()._on_boundary()
        assert restores or self._generators() == before

    def _on_step(self) -> bool:
        before = self._generators()
        goes_on = super()._on_step()
        assert self._generators() == before
        return goes_on

    def _on_training_end(self) -> None:
        before = self._generators()
        super()._on_training_end()
        assert self._generators() == before

    def _generators(self) -> list[Any]:
        venvs = [self.model.env, *(call.eval_env for _, call in walk(self.locals["callback"]) if isinstance(call, EvalCallback))]
        owners = [owner for venv in venvs for owner in (*_envs(venv), venv.action_space, venv.observation_space)]
        _, words, *rest = np.random.get_state()
        drawn = [random.getstate(), words.tobytes(), rest, torch.get_rng_state().numpy().tobytes()]
        return [*drawn, *(repr(owner._np_random and owner._np_random.bit_generator.state) for owner in owners)]


def _envs(venv: Any) -> list[Any]:
    while hasattr(venv, "venv"):
        venv = venv.venv
    return [env.unwrapped for env in venv.envs]
