"""Keep Stable-Baselines3 runs alive: ``model.learn(1_000_000, callback=milepost.adapters.sb3.Checkpointing("runs/ppo"))``."""

from milepost.errors import MissingExtraError

try:
    import stable_baselines3 as _stable_baselines3
except ImportError as error:
    raise MissingExtraError("sb3", "stable_baselines3") from error

from milepost.adapters.sb3.checkpointing import Checkpointing

__all__ = ["Checkpointing"]
