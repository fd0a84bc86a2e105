"""Take a Stable-Baselines3 run apart into components, each of which can be read and written in place.

Buffers and parameters are given as references: the engine copies them while training waits. Whatever a model, a callback
or a wrapper holds beyond what is named here is either plain data, and saved, or it is reported as left out.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import nn

from milepost import envs
from milepost.adapters.sb3 import callbacks as tree
from milepost.adapters.sb3 import replay
from milepost.adapters.sb3 import subject as about
from milepost.adapters.sb3.logs import capture_logger, restore_logger
from milepost.adapters.sb3.part import ArrayPart, FreePart, Part
from milepost.adapters.sb3.subject import Subject
from milepost.clock import SystemClock
from milepost.envs.capture import capture_layer, restore_layer
from milepost.envs.plain import LeftOut, Recorder, Refiller, class_name
from milepost.envs.settings import changed_settings
from milepost.envs.typed import differences
from milepost.records import Difference
from milepost.state.rng import Rng

_NORMALIZER = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
_HELD_ELSEWHERE = {"policy", "env", "_vec_normalize_env", "replay_buffer", "rollout_buffer", "_logger", "action_noise"}
# Set by every learn() or by the constructor's arguments: the script of today decides.
_SET_ANEW = {"_total_timesteps", "start_time", "verbose", "_custom_logger", "n_envs", "lr_schedule", "exploration_schedule",
             "ent_coef_tensor", "policy_class", "delta_std_schedule"}  # fmt: skip
# Made by the constructor, and replaced by callbacks that anneal a rate.
_REPLACED = frozenset({"lr_schedule", "exploration_schedule", "ent_coef_tensor"})
_BUFFER_SHAPE = {"buffer_size", "n_envs", "obs_shape", "action_dim", "observation_space", "action_space", "env"}
_MODULE_OWN = frozenset(vars(nn.Module())) | {"observation_space", "action_space"}


def build(subject: Subject) -> dict[str, Any]:
    """Return the components of the run in the order in which they are restored; generators come last."""
    model = subject.model
    # Learned tensors outside any module (SAC's log_ent_coef) are overwritten where they are: the optimizer holds them.
    learned = {"policy": {**about.own_modules(model), **about.own_parameters(model)}, "optimizer": about.optimizers(model)}
    # First, so that a changed algorithm is the first thing told.
    counters = FreePart("counters", subject, _counters, _set_counters, _counter_differences)
    parts: list[Part] = [
        *_experience(subject),
        FreePart("envs", subject, _envs, _set_envs, _env_differences, without=lambda subject: _start_episodes(subject.model)),
        FreePart("extra", subject, _extra, _set_extra, _callback_differences),
    ]
    if next(about.normalizers(model.env), None) is not None:
        parts.insert(-2, FreePart("normalizer", subject, _normalizer, _set_normalizer, _normalizer_differences))
    if subject.evaluations:
        parts.append(FreePart("evaluation", subject, _evaluation, _set_evaluation, _evaluation_differences))
    return {"counters": counters, **learned, **{part.name: part for part in parts}, "rng": Rng()}


def _experience(subject: Subject) -> list[Part]:
    if isinstance(subject.model, OnPolicyAlgorithm):
        return [FreePart("rollout", subject, _rollout, _set_rollout, lambda *_: [])]
    if getattr(subject.model, "replay_buffer", None) is None:
        return []
    replay.begin(subject)
    return [ArrayPart("replay", subject, replay.capture, replay.restore, replay.differences)]


# counters: the model's own attributes, and the adapter's marks


def _counters(subject: Subject, recorder: Recorder) -> Any:
    model, marks = subject.model, subject.marks
    skip = _HELD_ELSEWHERE | _SET_ANEW | about.configured(model) | _aliases(subject)
    return {
        "algorithm": class_name(model),
        "model": recorder.attributes(model, "model", skip=skip),
        "settings": changed_settings(model, about.configured(model) - _HELD_ELSEWHERE | _REPLACED, recorder, "model"),
        "elapsed_ns": SystemClock().wall_ns() - int(model.start_time),
        "training": model.policy.training,
        "marks": {"learn": marks.learn, "ended": marks.ended, "total": marks.total, "ends": list(marks.ends),
                  "episodes": marks.episodes, "reported": dict(marks.reported)},
    }  # fmt: skip


def _set_counters(subject: Subject, state: Any) -> None:
    model, marks, refiller = subject.model, subject.marks, Refiller()
    refiller.attributes(model, state["model"], "model")
    refiller.attributes(model, state["settings"], "settings")
    # Frames per second and elapsed time go on from where they were.
    model.start_time = SystemClock().wall_ns() - state["elapsed_ns"]
    model.policy.set_training_mode(state["training"])
    saved = state["marks"]
    marks.episodes, marks.ends, marks.reported = saved["episodes"], list(saved["ends"]), dict(saved["reported"])


def _aliases(subject: Subject) -> set[str]:
    """Return the model's attributes that other components hold, and lists of the policy's own tensors."""
    model = subject.model
    tensors = {id(value) for value in model.policy.state_dict(keep_vars=True).values()}
    return about.held_elsewhere(model, about.learned(model)) | {
        name
        for name, value in vars(model).items()
        if (isinstance(value, list) and name.endswith(("batch_norm_stats", "batch_norm_stats_target")))
        or (isinstance(value, list) and bool(value) and all(id(item) in tensors for item in value))
    }


def _counter_differences(subject: Subject, saved: Any) -> list[Difference]:
    here = class_name(subject.model)
    return [] if saved["algorithm"] == here else [Difference("algorithm", saved["algorithm"], here, "type")]


# rollout


def _rollout(subject: Subject, recorder: Recorder) -> Any:
    """Return the rollout buffer; at a boundary it has just been emptied, and only its cursors say something."""
    buffer: Any = subject.model.rollout_buffer  # type: ignore[attr-defined]
    skip = about.configured(buffer) | _BUFFER_SHAPE
    if not (buffer.pos or buffer.full):
        skip |= {name for name, value in vars(buffer).items() if isinstance(value, (np.ndarray, dict))}
    changed = changed_settings(buffer, about.configured(buffer) - _BUFFER_SHAPE, recorder, "rollout_buffer")
    return recorder.attributes(buffer, "rollout_buffer", skip=skip) | changed


def _set_rollout(subject: Subject, state: Any) -> None:
    buffer: Any = subject.model.rollout_buffer  # type: ignore[attr-defined]
    if not state["full"]:
        buffer.reset()
    Refiller().attributes(buffer, state, "rollout_buffer")


# normalizer and envs


def _normalizer(subject: Subject, recorder: Recorder) -> Any:
    return [capture_layer(layer, recorder, "VecNormalize") for layer in about.normalizers(subject.model.env)]


def _set_normalizer(subject: Subject, state: Any) -> None:
    for layer, saved in zip(about.normalizers(subject.model.env), state, strict=True):
        restore_layer(layer, saved, Refiller(), "VecNormalize")


def _normalizer_differences(subject: Subject, saved: Any) -> list[Difference]:
    live = len(list(about.normalizers(subject.model.env)))
    return [] if live == len(saved) else [Difference("layers", str(len(saved)), str(live), "env")]


def _envs(subject: Subject, recorder: Recorder) -> Any:
    state = envs.capture(subject.model.env, elsewhere=(_NORMALIZER,))
    recorder.left_out += state.left_out
    if subject.workers is not None:
        recorder.left_out.append(LeftOut("async_eval", "its workers tell nothing of the states of their envs"))
    return state.tree


def _set_envs(subject: Subject, state: Any) -> None:
    envs.restore(subject.model.env, state)
    if subject.workers is not None and (normalizer := subject.model.get_vec_normalize_env()) is not None:
        subject.workers.sync_obs_rms(normalizer.obs_rms.copy())
    if not envs.is_whole(state):
        _start_episodes(subject.model)


def _start_episodes(model: Any) -> None:
    """Reset envs of which some layer could not be brought back.

    The last observation is that of an episode which is gone. Training on from it against an env that stands elsewhere
    learns from transitions that never were; a fresh episode is merely not the same one.
    """
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.n_envs, bool)
    if model._vec_normalize_env is not None:
        model._last_original_obs = model._vec_normalize_env.get_original_obs()
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None and buffer.size():
        replay.end_last_episode(buffer)


def _env_differences(subject: Subject, saved: Any) -> list[Difference]:
    return envs.differences(subject.model.env, saved)


# extra: action noise, exploration matrices, the policy's changed attributes, logs, other callbacks


def _extra(subject: Subject, recorder: Recorder) -> Any:
    model, learned = subject.model, about.learned(subject.model)
    recorder.left_out += about.replaced_optimizers(subject)
    return {
        "action_noise": _action_noise(model.action_noise, recorder),
        "exploration": {name: _matrices(owner) for name, owner in _exploring(subject)},
        "modules": {name: _changed(module, learned, recorder, f"policy.{name}") for name, module in model.policy.named_modules()},
        "buffers": _unsaved_buffers(subject),
        "learning": [name for name, weights in _weights(subject) if weights.requires_grad],
        "logger": capture_logger(model.logger, recorder, "logger"),
        "callbacks": {path: _callback(subject, path, callback, recorder) for path, callback in _plain_callbacks(subject)},
        "lists": {path: _callback(subject, path, callback, recorder) for path, callback in tree.lists(subject.root)},
    }


def _set_extra(subject: Subject, state: Any) -> None:
    model, refiller = subject.model, Refiller()
    if state["action_noise"] is not None and model.action_noise is not None:
        refiller.attributes(model.action_noise, state["action_noise"], "action_noise")
    for name, owner in _exploring(subject):
        vars(owner).update({key: tensor.to(model.device) for key, tensor in state["exploration"].get(name, {}).items()})
    for name, module in model.policy.named_modules():
        refiller.attributes(module, state["modules"].get(name, {}), f"policy.{name}")
    for name, (module, buffer) in _unsaved_owners(subject).items():
        if name in state.get("buffers", {}):
            module._buffers[buffer] = refiller.value(state["buffers"][name], module._buffers[buffer], name)
    for name, weights in _weights(subject):
        weights.requires_grad_(name in state["learning"] if "learning" in state else weights.requires_grad)
    restore_logger(model.logger, state["logger"], refiller, model.num_timesteps, "logger")
    for path, callback in _plain_callbacks(subject):
        _set_callback(callback, state["callbacks"].get(path), refiller, path)
    for path, callback in tree.lists(subject.root):
        _set_callback(callback, state.get("lists", {}).get(path), refiller, path)


def _action_noise(noise: Any, recorder: Recorder) -> Any:
    return None if noise is None else recorder.attributes(noise, "action_noise")


def _exploring(subject: Subject) -> list[tuple[str, StateDependentNoiseDistribution]]:
    return [
        (f"{name}.{attribute}", value)
        for name, module in subject.model.policy.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, StateDependentNoiseDistribution)
    ]


def _matrices(owner: StateDependentNoiseDistribution) -> dict[str, torch.Tensor]:
    """Return the noise matrices of gSDE, which no ``state_dict`` holds."""
    names = ("exploration_mat", "exploration_matrices")
    return {name: vars(owner)[name].detach() for name in names if name in vars(owner)}


def _changed(module: nn.Module, learned: set[int], recorder: Recorder, path: str) -> dict[str, Any]:
    """Return the plain attributes of a module of the policy that training has changed: a custom extractor's own counters."""
    others = _MODULE_OWN | about.held_elsewhere(module, learned)  # its optimizer is a component of its own
    return changed_settings(module, frozenset(vars(module)) - others, recorder, path)


def _unsaved_owners(subject: Subject) -> dict[str, tuple[nn.Module, str]]:
    """Return the buffers that were registered with ``persistent=False``: no ``state_dict`` holds them."""
    return {
        f"{path}.{name}": (module, name)
        for owner, root in about.own_modules(subject.model).items()
        for path, module in root.named_modules(prefix=owner)
        for name in sorted(module._non_persistent_buffers_set)
    }


def _weights(subject: Subject) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of all modules: a callback may freeze some of them, and no ``state_dict`` says which."""
    return [found for owner, root in about.own_modules(subject.model).items() for found in root.named_parameters(owner)]


def _unsaved_buffers(subject: Subject) -> dict[str, Any]:
    return {name: owner._buffers[buffer] for name, (owner, buffer) in _unsaved_owners(subject).items()}


def _plain_callbacks(subject: Subject) -> list[tuple[str, Any]]:
    return [
        (path, callback) for path, callback in tree.others(subject.root, subject.ours) if not isinstance(callback, EvalCallback)
    ]


def _callback(subject: Subject, path: str, callback: Any, recorder: Recorder) -> Any:
    leads = tree.not_state(callback)
    names = about.configured(callback) - leads
    skip = leads | names | about.held_elsewhere(callback, about.learned(subject.model))
    state = recorder.attributes(callback, path, skip=skip)
    return {"state": state, "settings": changed_settings(callback, names, recorder, path)}


def _set_callback(callback: Any, saved: Any, refiller: Refiller, path: str) -> None:
    if saved is not None:
        refiller.attributes(callback, saved["state"], path)
        refiller.attributes(callback, saved["settings"], f"{path} settings")


def _callback_differences(subject: Subject, saved: Any) -> list[Difference]:
    live = dict(_plain_callbacks(subject))
    found = _path_differences(saved["callbacks"], list(live))
    return found + _held_differences(subject, saved["callbacks"], live)


def _held_differences(subject: Subject, saved: dict[str, Any], live: dict[str, Any]) -> list[Difference]:
    """Return what the callbacks held and do not hold any more, or hold in another shape: a network, an optimizer."""
    both = [(path, saved[path], callback) for path, callback in live.items() if path in saved]
    return [
        found
        for path, one, callback in both
        for found in differences(one["state"], _callback(subject, path, callback, Recorder())["state"], path)
    ]


def _path_differences(saved: Any, live: list[str]) -> list[Difference]:
    gone = [Difference(path, "a callback", "none", "code") for path in saved if path not in live]
    return gone + [Difference(path, "none", "a callback", "code") for path in live if path not in saved]


# evaluation: counters, best score, and the env they are measured on


def _evaluation(subject: Subject, recorder: Recorder) -> Any:
    found = {}
    for path, callback in subject.evaluations:
        env = envs.capture(callback.eval_env)
        recorder.left_out += [LeftOut(f"{path}.eval_env/{left.path}", left.reason) for left in env.left_out]
        found[path] = {"callback": _callback(subject, path, callback, recorder), "env": env.tree}
    return found


def _set_evaluation(subject: Subject, state: Any) -> None:
    refiller = Refiller()
    for path, callback in subject.evaluations:
        if path in state:
            _set_callback(callback, state[path]["callback"], refiller, path)
            _take_statistics_apart(subject, callback.eval_env)
            envs.restore(callback.eval_env, state[path]["env"])


def _take_statistics_apart(subject: Subject, eval_env: Any) -> None:
    """Give the evaluation statistics of its own where the script shares the training env's.

    Each evaluation begins with a copy of these; the older ones that come back would overwrite those of training.
    """
    trained = {id(value) for layer in about.normalizers(subject.model.env) for value in vars(layer).values()}
    for layer in about.normalizers(eval_env):
        if layer in about.normalizers(subject.model.env):
            continue
        for name in ("obs_rms", "ret_rms"):
            if id(vars(layer).get(name)) in trained:
                vars(layer)[name] = copy.deepcopy(vars(layer)[name])


def _evaluation_differences(subject: Subject, saved: Any) -> list[Difference]:
    live = dict(subject.evaluations)
    found = _path_differences(saved, list(live))
    found += _held_differences(subject, {path: node["callback"] for path, node in saved.items()}, live)
    for path in live.keys() & saved.keys():
        found += envs.differences(live[path].eval_env, saved[path]["env"], f"{path}.eval_env")
    return found
