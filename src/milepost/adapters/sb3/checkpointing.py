"""Checkpoint and resume a Stable-Baselines3 run from an ordinary callback.

State is read and written at the same hook, `_on_rollout_start`: the last ``train()`` is over, the rollout buffer has been
emptied, and nothing of ``collect_rollouts`` is live (where that is not so, see `milepost.adapters.sb3.boundary`). When the
script runs again unchanged, everything that its own set-up has made by the time the hook first fires (networks, a reset
env, drawn noise) is overwritten in place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from milepost import envs
from milepost.adapters.sb3 import boundary
from milepost.adapters.sb3 import callbacks as tree
from milepost.adapters.sb3.part import Part
from milepost.adapters.sb3.parts import build
from milepost.adapters.sb3.rounds import idle
from milepost.adapters.sb3.start import Saved, Start, decide
from milepost.adapters.sb3.subject import Marks, Subject, fingerprint
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.lifecycle.recover import Which
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import Trigger, every
from milepost.records import Summary
from milepost.store.base import Store


@dataclass(slots=True)
class _History:
    """Remember the completed ``learn()`` calls of one model on one run root, in this process."""

    ends: list[int] = field(default_factory=list)
    episodes: int = 0


_histories: WeakKeyDictionary[BaseAlgorithm, dict[str, _History]] = WeakKeyDictionary()
# A learn() that ends with an exception (an interrupt, mostly) never tells its callbacks. The next one closes its engine.
_open: WeakValueDictionary[str, CheckpointEngine] = WeakValueDictionary()


class Checkpointing(BaseCallback):
    """Save the whole experiment while ``learn()`` runs, and go on from there when the same script runs again.

    ::

        model = PPO("MlpPolicy", env, seed=0)
        model.learn(1_000_000, callback=Checkpointing("runs/ppo", when=every(steps=10_000), keep=Keep(last=5)))

    The script stays as it is: no ``PPO.load``, the same total. Killed at any moment and run again, it ends with the same
    bits. Run once more after the end, it trains nothing, and the model is the trained one when ``learn()`` returns. With
    a larger total it goes on from the end, as a longer run would have (a schedule that depends on the total moves, and
    a warning says so). An `EvalCallback` beside it reports ``eval/mean_reward``, for ``Keep(best=1, by=...)``.

    A script may call ``learn()`` several times with one root: when it is run again, calls that are over are skipped, and
    code between them sees the newest state. Steps are the model's own ``num_timesteps``: with ``reset_num_timesteps=True``
    they start again, and so do triggers; generations only go up. In one process every completed ``learn()`` of a model
    counts as the next call; a new model counts from the first, so that a notebook cell can be run again.

    ``which`` chooses what to go on from (``latest``, ``best``, a generation, ``never``); all else goes to `CheckpointEngine`.
    Where ``learn()`` ends with an exception nothing new is saved; what was staged before it is still written. With ``stop=True``
    it ends with `milepost.Stopped`, at a rollout's start, once all is saved.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        *,
        when: Trigger | None = None,
        keep: Keep | None = None,
        which: Which = "latest",
        **engine: Any,
    ) -> None:
        super().__init__()
        self._root = root
        self._name = root.url if isinstance(root, Store) else os.fspath(root)
        if not isinstance(root, Store) and "://" not in self._name:
            self._name = os.path.abspath(self._name)
        self._settings = {"when": when or every(minutes=10), "keep": keep, **engine}
        self._which = which
        self._engine: CheckpointEngine | None = None
        self._subject: Subject | None = None
        self._due = False
        """The state is to be brought back at the next rollout's start."""
        self._ended_at: int | None = None
        """Set where this call has nothing to train: the step at which it had ended."""
        self._counted: list[tuple[BaseCallback, int]] = []
        """What each callback's step was then: those started after this one take the total, which the loop is shown."""
        self._watched = False
        """The boundary is told by the model itself, not by `_on_rollout_start`."""

    def flush_staged(self, reason: str = "preempted") -> Summary | None:
        """Publish the start of this rollout, if ``grace=`` keeps it staged: see `CheckpointEngine.flush_staged`. For any thread.

        Returns None, too, where no ``learn()`` runs.
        """
        engine = self._engine  # once: `learn()` may end meanwhile
        return engine.flush_staged(reason) if engine is not None else None

    def _on_training_start(self) -> None:
        root = self.locals["callback"]
        tree.move_to_front(root, self)
        history = self._history()
        marks = Marks(learn=len(history.ends), total=int(self.locals["total_timesteps"]), ends=list(history.ends))
        marks.episodes = 0 if self.locals.get("reset_num_timesteps", True) else history.episodes
        workers = self.locals.get("async_eval")
        self._subject = Subject(self.model, root, self, marks, evaluations=tree.evaluations(root), workers=workers)
        marks.reported = {path: tree.last_evaluation(callback) for path, callback in self._subject.evaluations}
        self._due, self._ended_at = False, None
        idle(self.model, 0)
        for env in self._subject.environments:
            envs.attach(env)
        boundary.unwatch(self.model)
        self._engine = self._opened(self._subject)
        self._watched = boundary.watch(self.model, self._on_boundary)
        self._begin(self._engine, self._engine.peek(self._which))

    def _opened(self, subject: Subject) -> CheckpointEngine:
        if (left := _open.pop(self._name, None)) is not None:
            left.close()
        parts = build(subject)
        for part in parts.values():
            if isinstance(part, Part):
                part.state_dict()  # notes the settings as they are now, which the fingerprint needs
        engine = CheckpointEngine(self._root, state=parts, fingerprint=fingerprint(subject), **self._settings)
        engine.claim()
        _open[self._name] = engine
        return engine

    def _begin(self, engine: CheckpointEngine, found: Summary | None) -> None:
        """Do what the newest generation asks for. Counters come back here, before the loop's first test."""
        saved = Saved.read(found.step, found.counters) if found is not None else None
        start = self._decide(saved)
        if start is Start.FRESH:
            if self._which == "never":
                engine.resume("never")
            elif saved is not None:
                # The call before this one left the live state behind, and this one trains on from it.
                engine.adopt()
            return
        assert saved is not None
        if start in (Start.CONTINUE, Start.EXTEND):
            self._due = True
            self._set_step(saved.step)
            idle(self.model, saved.rounds)
            return
        self._load_finished(engine)

    def _decide(self, saved: Saved | None) -> Start:
        marks = self._now.marks
        return decide(saved, learn=marks.learn, total=marks.total)

    def _load_finished(self, engine: CheckpointEngine) -> None:
        """Bring a call back that had ended, and leave its loop nothing to do."""
        before = self.model.num_timesteps
        restored = engine.resume(self._which)
        assert restored is not None
        saved, marks = Saved.read(restored.step, restored.counters), self._now.marks
        start = self._decide(saved)
        if start in (Start.FINISHED, Start.SKIPPED):
            self._counted = [(callback, callback.num_timesteps) for _, callback in tree.walk(self._now.root)]
            self._ended_at = marks.ends[marks.learn] if marks.learn < len(marks.ends) else self.model.num_timesteps
            # A callback may have stopped the call before its total. The loop tests the step, so it is shown the total.
            self._set_step(max(self._ended_at, marks.total))
            return
        # The end was damaged, and an older generation took its place.
        self._due = start is not Start.FRESH
        self._set_step(saved.step if self._due else before)
        idle(self.model, saved.rounds if self._due else 0)

    def _on_rollout_start(self) -> None:
        if not self._watched:
            self._on_boundary()
            return
        # Somebody may have given the model another schedule since.
        boundary.watch(self.model, self._on_boundary)

    def _on_boundary(self) -> None:
        engine, subject = self._running, self._now
        if self._due:
            self._due = False
            self._bring_back(engine, subject)
            return
        self._report(engine, subject)
        marks = subject.marks
        engine.save_if_due(self.model.num_timesteps, episodes=marks.episodes, counters=marks.counters(self.model))

    def _bring_back(self, engine: CheckpointEngine, subject: Subject) -> None:
        step = self.model._num_timesteps_at_start
        restored = engine.resume(self._which)
        assert restored is not None
        saved, marks = Saved.read(restored.step, restored.counters), subject.marks
        marks.rounds = saved.rounds
        del marks.ends[marks.learn :]
        if saved.ended:
            _begin_rollout(self.model)
        self._set_step(self.model.num_timesteps if saved.learn == marks.learn else step)

    def _on_step(self) -> bool:
        subject = self._now
        if not self._watched:
            subject.marks.episodes += int(np.count_nonzero(self.locals["dones"]))
        if subject.evaluations:
            self._report(self._running, subject)
        return True

    def _on_rollout_end(self) -> None:
        marks = self._now.marks
        marks.rounds += 1
        if self._watched:
            # Its steps say nothing of episodes; each update begins with an empty list of them.
            marks.episodes += len(self.model.ep_info_buffer or ())

    def _on_training_end(self) -> None:
        boundary.unwatch(self.model)
        engine, subject = self._running, self._now
        marks, history = subject.marks, self._history()
        try:
            if self._ended_at is None:
                self._save_end(engine, subject)
            else:
                for callback, step in self._counted:
                    callback.num_timesteps = step
                self._set_step(self._ended_at)
        finally:
            _open.pop(self._name, None)
            self._engine, self._subject, self._counted = None, None, []
            engine.close()
        history.ends.append(self.model.num_timesteps)
        history.episodes = marks.episodes

    def _save_end(self, engine: CheckpointEngine, subject: Subject) -> None:
        marks, step = subject.marks, self.model.num_timesteps
        self._report(engine, subject)
        marks.ended = True
        marks.ends.append(step)
        engine.save(step, reason="final", episodes=marks.episodes, counters=marks.counters(self.model))
        engine.wait()

    def _report(self, engine: CheckpointEngine, subject: Subject) -> None:
        """Report evaluations made since the last look; they ran after our hook of the same step."""
        for index, (path, callback) in enumerate(subject.evaluations):
            calls = tree.last_evaluation(callback)
            if calls and calls != subject.marks.reported.get(path):
                subject.marks.reported[path] = calls
                name = "eval/mean_reward" if index == 0 else f"eval_{index}/mean_reward"
                engine.report(callback.num_timesteps, {name: callback.last_mean_reward})

    def _history(self) -> _History:
        return _histories.setdefault(self.model, {}).setdefault(self._name, _History())

    def _set_step(self, step: int) -> None:
        self.model.num_timesteps = self.num_timesteps = step

    @property
    def _running(self) -> CheckpointEngine:
        assert self._engine is not None, "learn() calls _on_training_start first"
        return self._engine

    @property
    def _now(self) -> Subject:
        assert self._subject is not None, "learn() calls _on_training_start first"
        return self._subject


def _begin_rollout(model: BaseAlgorithm) -> None:
    """Do what ``collect_rollouts`` did before our hook, once more: the state of an ended call was taken before that."""
    if not hasattr(model, "collect_rollouts"):
        return
    policy: Any = model.policy
    policy.set_training_mode(False)
    if isinstance(model, OnPolicyAlgorithm):
        model.rollout_buffer.reset()
    if model.use_sde:
        owner = policy if isinstance(model, OnPolicyAlgorithm) else policy.actor
        owner.reset_noise(model.n_envs)
