"""Know which algorithm has saved a model: its zip does not say, but each has attributes that no other has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from milepost.adapters.sb3.subject import TOLD_ELSEWHERE, setting_text
from milepost.adapters.sb3.zipped import SavedModel
from milepost.envs.attributes import arguments_of

_SB3, _CONTRIB = "stable_baselines3", "sb3_contrib"


def algorithm_of(model: SavedModel) -> str:
    """Return the class, as ``module.Class``; empty where it is none that can be imported."""
    has = {*model.settings, *model.pickled}
    return next((found(model) for attribute, found in _BY_ATTRIBUTE if attribute in has), "")


def settings_of(model: SavedModel, algorithm: str) -> dict[str, str]:
    """Return what the model's own fingerprint would say of its settings, as far as they are plain values."""
    module, _, name = algorithm.rpartition(".")
    if module not in sys.modules and module.partition(".")[0] not in (_SB3, _CONTRIB):
        return {}
    try:
        arguments = arguments_of(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError):
        return {}
    plain = {name: value for name, value in model.settings.items() if name in arguments}
    return {
        f"code/settings/{name}": text
        for name, value in plain.items()
        if (text := setting_text(value)) and name not in TOLD_ELSEWHERE
    }


def _named(package: str, module: str, name: str) -> Callable[[SavedModel], str]:
    return lambda _: f"{package}.{module}.{module}.{name}"


def _ppo(model: SavedModel) -> str:
    if any("lstm_actor." in str(name) for name in model.modules.get("policy", ())):
        return "sb3_contrib.ppo_recurrent.ppo_recurrent.RecurrentPPO"
    masked = any(module.startswith("sb3_contrib.common.maskable") for module in model.kinds.values())
    return "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO" if masked else "stable_baselines3.ppo.ppo.PPO"


def _td3(model: SavedModel) -> str:
    # DDPG is TD3 with these settings, which nobody gives to TD3.
    is_ddpg = model.settings.get("policy_delay") == 1 and model.settings.get("target_noise_clip") == 0
    return "stable_baselines3.ddpg.ddpg.DDPG" if is_ddpg else "stable_baselines3.td3.td3.TD3"


_BY_ATTRIBUTE: tuple[tuple[str, Callable[[SavedModel], str]], ...] = (
    ("n_delta", lambda _: ""),  # ARS: its weights are no state of a module, and half of them are in a pickle
    ("cg_max_steps", _named(_CONTRIB, "trpo", "TRPO")),
    ("clip_range", _ppo),
    ("gae_lambda", _named(_SB3, "a2c", "A2C")),
    ("n_quantiles", _named(_CONTRIB, "qrdqn", "QRDQN")),
    ("exploration_fraction", _named(_SB3, "dqn", "DQN")),
    ("top_quantiles_to_drop_per_net", _named(_CONTRIB, "tqc", "TQC")),
    ("target_noise_clip", _td3),
    ("policy_delay", _named(_CONTRIB, "crossq", "CrossQ")),
    ("target_entropy", _named(_SB3, "sac", "SAC")),
)
"""By an attribute that those above it do not have."""
