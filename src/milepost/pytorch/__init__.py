"""Teach milepost the kinds of leaf and generator that PyTorch brings. Loaded only once ``torch`` is imported.

The names below are for who trains with PyTorch; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.pytorch.export.contents import Contents
    from milepost.pytorch.export.saver import Saver
    from milepost.pytorch.export.uploading import Upload
    from milepost.pytorch.recover.engines import TrainEngine
    from milepost.pytorch.recover.evaluator import Evaluator
    from milepost.pytorch.recover.frontier import TrainedFrontier
    from milepost.pytorch.recover.handler import RecoverHandler
    from milepost.pytorch.recover.inference import Inference, WeightUpdate
    from milepost.pytorch.recover.info import RecoverInfo
    from milepost.pytorch.steps import StepInfo

_HOMES = {
    "Contents": "milepost.pytorch.export.contents",
    "Evaluator": "milepost.pytorch.recover.evaluator",
    "Inference": "milepost.pytorch.recover.inference",
    "RecoverHandler": "milepost.pytorch.recover.handler",
    "RecoverInfo": "milepost.pytorch.recover.info",
    "Saver": "milepost.pytorch.export.saver",
    "StepInfo": "milepost.pytorch.steps",
    "TrainEngine": "milepost.pytorch.recover.engines",
    "TrainedFrontier": "milepost.pytorch.recover.frontier",
    "Upload": "milepost.pytorch.export.uploading",
    "WeightUpdate": "milepost.pytorch.recover.inference",
}

__all__ = [
    "Contents",
    "Evaluator",
    "Inference",
    "RecoverHandler",
    "RecoverInfo",
    "Saver",
    "StepInfo",
    "TrainEngine",
    "TrainedFrontier",
    "Upload",
    "WeightUpdate",
]


def __getattr__(name: str) -> object:
    """Import a public name from its home at its first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'milepost.pytorch' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from milepost.errors import MissingExtraError

        raise MissingExtraError("torch", "torch") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
