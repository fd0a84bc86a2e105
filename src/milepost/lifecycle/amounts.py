"""Read the lengths of time and the sizes that people write: ``7d``, ``90s``, ``500M``, ``4GiB``."""

from __future__ import annotations

import math
import re

from milepost.errors import UsageError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(|s|m|min|h|d|w)$", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$", re.ASCII | re.IGNORECASE)


def seconds_of(text: str | float) -> float:
    """Return a length of time in seconds; a number stands for itself.

    >>> seconds_of("7d"), seconds_of("5min"), seconds_of(20)
    (604800.0, 300.0, 20.0)
    """
    found = _DURATION.match(text.strip()) if isinstance(text, str) else None
    seconds = float(found[1]) * _SECONDS[found[2]] if found else math.nan if isinstance(text, str) else float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError("this is not a length of time", kind="bad-duration", hint="like 90s, 15m, 12h, 7d or 2w", given=text)
    return seconds


def bytes_of(text: str) -> int:
    """Return a size in bytes, at least one. Units go up by 1,024, as everywhere in milepost's output.

    >>> bytes_of("500M"), bytes_of("4GiB"), bytes_of("100")
    (524288000, 4294967296, 100)
    """
    found = _SIZE.match(text.strip())
    count = int(float(found[1]) * 1024 ** _BYTES[found[2].upper()]) if found else 0
    if count < 1:
        raise UsageError("this is not a size", kind="bad-size", hint="like 500K, 50M or 4G", given=text)
    return count
