"""Keep Stable-Baselines3 runs alive: ``model.learn(1_000_000, callback=milepost.adapters.sb3.Checkpointing("runs/ppo"))``."""

from milepost.errors import MissingExtraError

try:
    from milepost.adapters.sb3.checkpointing import Checkpointing
except ModuleNotFoundError as error:
    if error.name in ("stable_baselines3", "torch", "gymnasium"):
        raise MissingExtraError("sb3", error.name) from error
    raise

__all__ = ["Checkpointing"]
