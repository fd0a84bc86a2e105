"""Bring a model that Stable-Baselines3 has saved into a run root, from which `Checkpointing` goes on.

The weights, optimizers and counters come bit for bit; what such a zip does not hold (states of environments, generators, the
rollout that was under way) is written down as not captured, so that whoever resumes is told why it is not exact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from milepost.adapters.sb3 import replay
from milepost.adapters.sb3.algorithms import algorithm_of, settings_of
from milepost.adapters.sb3.beside import NORMALIZER, REPLAY, find_beside, read_normalizer, read_replay
from milepost.adapters.sb3.part import not_captured
from milepost.adapters.sb3.subject import Marks, Subject
from milepost.adapters.sb3.zipped import SavedModel, is_model, read_model
from milepost.engine.oneshot import take_in
from milepost.engine.session import Order
from milepost.envs.capture import capture_layer
from milepost.envs.plain import Recorder
from milepost.errors import MilepostError, UsageError
from milepost.pytorch.importing.base import Imported, Options, check_target, damaged
from milepost.pytorch.importing.given import Given
from milepost.records import Exactness
from milepost.state.tree import flatten
from milepost.text import plain

_COUNTERS = (
    "_num_timesteps_at_start",
    "_episode_num",
    "_n_updates",
    "_n_calls",
    "_current_progress_remaining",
    "exploration_rate",
)
_STATISTICS = ("ep_info_buffer", "ep_success_buffer")
ALGORITHM = "algorithm"
"""What ``--component package.module.Class=algorithm`` says: the model's class, where that is one of the user's own."""


class SavedModels:
    """Know what ``model.save()`` and `CheckpointCallback` of Stable-Baselines3 write."""

    name = "sb3"

    def recognise(self, path: Path) -> bool:
        """Return whether a model lies there, whole or not."""
        return is_model(path)

    def bring(self, path: Path, root: str, options: Options) -> Imported:
        """Publish the model, its replay buffer and its normalizer as one generation that `Checkpointing` resumes."""
        check_target(root, options)
        _check_chosen(options.components)
        model = read_model(path)
        brought = _Brought(path, options, model)
        algorithm = _class_of(model, options.components, path)
        steps = brought.count("num_timesteps") if options.step is None else options.step
        brought.learned()
        brought.counters(algorithm, steps)
        brought.experience(on_policy="replay_buffer_class" not in {**model.settings, **model.pickled})
        brought.normalizer()
        brought.absent()
        order = Order(steps, "imported", brought.elapsed_s(), brought.summary(steps), exactness=brought.exactness)
        for component, state in brought.state.items():
            flatten(state, component)  # what cannot be saved is told by a dry run, too
        number, run_id = 0, ""
        if not options.dry_run:
            known = {f"version/{name}": version for name, version in model.versions.items()}
            summary = take_in(
                root,
                brought.state,
                order,
                fingerprint=known | settings_of(model, algorithm),
                add=options.add,
                key_file=options.key_file,
            )
            number, run_id = summary.number, summary.run_id
        return Imported(self.name, root, run_id, number, steps, brought.came, tuple(brought.left_out))


@dataclass(slots=True)
class _Brought:
    """Gather the components, and what did not come."""

    path: Path
    options: Options
    model: SavedModel
    state: dict[str, Any] = field(default_factory=dict)
    exactness: dict[str, tuple[Exactness, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def came(self) -> tuple[str, ...]:
        """Return the components that hold something: of the others the run only says why they do not."""
        return tuple(name for name in self.state if self.exactness.get(name, ("exact", ""))[0] != "not captured")

    def count(self, name: str) -> int:
        """Return a counter of the model. Raises `CorruptError` if it is none."""
        found = self.model.settings.get(name)
        if type(found) is not int or not 0 <= found < 1 << 62:
            raise damaged("a counter of the model is none", self.path, counter=name, found=str(found)[:80])
        return found

    def learned(self) -> None:
        """Bring weights and optimizers, as they are."""
        for name, weights in self.model.modules.items():
            if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
                raise damaged("an entry holds no weights", self.path, entry=f"{name}.pth")
        own = {name: value.detach() for name, value in self.model.tensors.items() if _is_learned(value)}
        self.state["policy"] = {**{name: Given(weights) for name, weights in self.model.modules.items()}, **own}
        self.state["optimizer"] = {name: Given(found) for name, found in self.model.optimizers.items()}
        for name in self.model.strange:
            self.left_out.append(plain(f"{name[:200]}: Stable-Baselines3 writes no such entry"))

    def counters(self, algorithm: str, steps: int) -> None:
        """Bring what the model counts. Its settings are the script's to say."""
        recorder = Recorder()
        counted = {
            name: self.model.settings[name] for name in _COUNTERS if isinstance(self.model.settings.get(name), int | float)
        }
        for name in _STATISTICS:
            if name in self.model.pickled:
                try:
                    counted |= recorder.items({name: self.model.value(name, self.path)}, "model")
                except UsageError as error:
                    self.left_out.append(f"{name}: {error.message} ({error.facts.get('calls')})")
        # As if a call of learn() had ended here: whoever asks for more steps goes on with a new rollout.
        marks = {"learn": 0, "ended": True, "total": steps, "ends": [steps], "episodes": self.episodes, "reported": {}}
        self.state["counters"] = Given(
            {
                "algorithm": algorithm,
                "model": {**counted, "num_timesteps": steps},
                "settings": {},
                "elapsed_ns": int(self.elapsed_s() * 1e9),
                "training": False,
                "marks": marks,
            }
        )

    @property
    def episodes(self) -> int:
        """Return how many episodes were over; 0 where the algorithm does not count them."""
        return self.count("_episode_num") if "_episode_num" in self.model.settings else 0

    def summary(self, steps: int) -> dict[str, int]:
        """Return what the generation's summary counts."""
        updates = self.count("_n_updates") if "_n_updates" in self.model.settings else 0
        return {"learn": 0, "ended": 1, "total": steps, "episodes": self.episodes, "rounds": 0, "updates": updates}

    def elapsed_s(self) -> float:
        """Return how long training had taken, by the file's own time; 0 if that says nothing."""
        started = self.model.settings.get("start_time")
        passed = os.stat(self.path).st_mtime_ns - started if type(started) is int else 0
        return passed / 1e9 if 0 < passed < 10**18 else 0.0

    def experience(self, *, on_policy: bool) -> None:
        """Bring the replay buffer that lies beside; of a rollout there is never one."""
        if on_policy:
            self._miss("rollout", "the rollout under way is not saved with a model: its steps count, and are not trained on")
            return
        beside = find_beside(self.path, self.options.components).get(REPLAY)
        if beside is None:
            self._miss(REPLAY, "no replay buffer lies beside the model: training goes on with an empty one")
            return
        buffer = self._read(REPLAY, beside, read_replay)
        if buffer is not None:
            subject = Subject(SimpleNamespace(replay_buffer=buffer), None, None, Marks(), [])  # type: ignore[arg-type]
            self.state[REPLAY] = Given(self._recorded(REPLAY, lambda recorder: replay.capture(subject, recorder)))

    def normalizer(self) -> None:
        """Bring the statistics of the normalizer that lie beside."""
        beside = find_beside(self.path, self.options.components).get(NORMALIZER)
        if beside is not None:
            layer = self._read(NORMALIZER, beside, read_normalizer)
            if layer is not None:
                taken = self._recorded(NORMALIZER, lambda recorder: [capture_layer(layer, recorder, "VecNormalize")])
                self.state[NORMALIZER] = Given(taken)
        elif REPLAY not in self.state and "_last_original_obs" in self.model.pickled:
            # Learning on policy, only a normalizer has two observations for one. Off policy there are always two.
            self._miss(NORMALIZER, "no statistics lie beside the model, whose observations were normalized: they begin anew")

    def absent(self) -> None:
        """Say of each other component of a run why it is not there."""
        self._miss("envs", "a saved model holds no states of environments: they begin new episodes")
        self._miss("extra", "a saved model holds no callbacks, no logs and no noise: they are as the script makes them")
        self.state["rng"] = Given({"process": {}, "named": {}})
        self._note("rng", "a saved model holds no random generators: they are as the script seeds them")

    def _miss(self, name: str, reason: str) -> None:
        self.state[name] = Given(not_captured(reason))
        self._note(name, reason)

    def _note(self, name: str, reason: str) -> None:
        self.exactness[name] = ("not captured", reason)
        self.left_out.append(f"{name}: {reason}")

    def _read(self, name: str, beside: Path, read: Any) -> Any:
        """Return what lies in a pickle, or None where that is more than data and is not trusted."""
        try:
            return read(beside, trust=self.options.trust_pickle)
        except UsageError as error:
            if error.kind != "pickle-not-trusted":
                raise
            what = "is a pickle that makes more than data: --trust-pickle reads it, if you trust whoever wrote it"
            self._miss(name, plain(f"{beside.name} {what} ({error.facts.get('calls')})"))
            return None

    def _recorded(self, name: str, capture: Any) -> Any:
        recorder = Recorder()
        try:
            found = capture(recorder)
        except MilepostError:
            raise
        except Exception as error:
            # The attributes are anybody's: whatever the code that takes them apart stumbles over is their fault.
            raise damaged(f"the {name} does not hold together", self.path, because=repr(error)[:200]) from error
        if recorder.left_out:
            text = "; ".join(map(str, recorder.left_out))
            self.exactness[name] = ("approximate", text)
            self.left_out.append(f"{name}: {text}")
        return found


def _check_chosen(components: Mapping[str, str]) -> None:
    for key, component in components.items():
        if component not in (REPLAY, NORMALIZER, ALGORITHM):
            raise UsageError(
                "a saved model has no such part to be named",
                kind="unknown-component",
                hint=f"FILE={REPLAY}, FILE={NORMALIZER}, or package.module.Class={ALGORITHM}",
                name=component,
                key=key,
            )


def _is_learned(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _class_of(model: SavedModel, components: Mapping[str, str], path: Path) -> str:
    named = [name for name, component in components.items() if component == ALGORITHM]
    found = named[-1] if named else algorithm_of(model)
    if found:
        return found
    raise UsageError(
        "this model is of an algorithm that cannot be imported",
        kind="unknown-algorithm",
        hint="name its class if it is derived from one that can: --component mine.MyPPO=algorithm; nothing was written",
        path=str(path),
    )
