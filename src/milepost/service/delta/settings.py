"""Say how a delta is to be encoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from milepost.errors import UsageError
from milepost.service.delta.records import MOST_CHUNK_WORDS


@dataclass(frozen=True, slots=True)
class How:
    """Say when a chunk is told by what changed, and what a byte on its way costs."""

    incremental_threshold: float | Literal["auto"] = "auto"
    """``auto``: in whichever form is likely to be there first. A fraction: by what changed if at most so much of it did."""
    link_bytes_s: float = 125e6
    """How fast the slowest reader gets bytes: on a fast link it does not pay to pack them."""
    chunk_words: int = 4 << 20
    strong: bool = False
    """Whether digests are SHA-256, as in a signed run, and not XXH3-128."""

    def __post_init__(self) -> None:
        threshold = self.incremental_threshold
        if threshold != "auto" and not (isinstance(threshold, (int, float)) and 0 <= threshold <= 1):
            raise _bad("incremental_threshold", threshold, "it is `auto`, or a fraction from 0 to 1")
        if not (self.link_bytes_s > 0 and math.isfinite(self.link_bytes_s)):
            raise _bad("link_bytes_s", self.link_bytes_s, "it is bytes a second, more than 0")
        if not 1 <= self.chunk_words <= MOST_CHUNK_WORDS:
            raise _bad("chunk_words", self.chunk_words, f"it is from 1 to {MOST_CHUNK_WORDS}")


def _bad(setting: str, value: object, hint: str) -> UsageError:
    return UsageError("a delta cannot be encoded with this setting", kind="bad-setting", hint=hint, setting=setting, value=value)
