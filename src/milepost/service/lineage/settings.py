"""Say which batches are too old, and how many may wait."""

from __future__ import annotations

import math
from dataclasses import dataclass

from milepost.errors import UsageError


@dataclass(frozen=True, slots=True)
class Lineage:
    """Say what a batch of older weights is worth, and how much the queue holds."""

    max_version_gap: int = 2
    """By how many trainer steps the weights that made a batch may be behind."""
    down_weight: float = 0.5
    """What each step of that gap makes of a batch's weight; 1: nothing."""
    max_age_ns: int | None = None
    """How long a batch may have waited; None: for ever."""
    alert_only: bool = False
    """Whether batches that are too old, by gap or age, are used all the same, and only counted."""
    limit_bytes: int = 8 << 30
    """How many bytes of batches may lie in the queue, with those that an older generation of the trainer may need again."""

    def __post_init__(self) -> None:
        if self.max_version_gap < 0:
            raise _bad("max_version_gap", self.max_version_gap, "it is a number of trainer steps, from 0")
        if not (0 <= self.down_weight <= 1 and math.isfinite(self.down_weight)):
            raise _bad("down_weight", self.down_weight, "it is a factor from 0 to 1")
        if self.max_age_ns is not None and self.max_age_ns < 0:
            raise _bad("max_age", self.max_age_ns, "it is a time, or none")
        if self.limit_bytes < 0:
            raise _bad("limit_bytes", self.limit_bytes, "it is a number of bytes, from 0")


def _bad(setting: str, value: object, hint: str) -> UsageError:
    return UsageError("batches cannot be judged with this setting", kind="bad-setting", hint=hint, setting=setting, value=value)
