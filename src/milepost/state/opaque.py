"""Carry values that can only be pickled. The one module that imports pickle: written when allowed, read when trusted."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from milepost.errors import UsageError


@dataclass(slots=True)
class Opaque:
    """Mark a value that may be pickled as one leaf. Needs ``allow_pickle=True`` to save, ``trust_pickle=True`` to load."""

    value: Any


def pickled(opaque: Opaque, path: str, *, allow: bool) -> bytes:
    """Return the bytes of an opaque value."""
    if not allow:
        hint = "pass allow_pickle=True, and trust_pickle=True to load it, or give the object state_dict and load_state_dict"
        raise UsageError("an opaque value may not be pickled here", kind="pickle-not-allowed", hint=hint, path=path)
    try:
        return pickle.dumps(opaque.value, protocol=5)
    except Exception as error:  # the value's own code runs, and may raise anything
        raise UsageError("an opaque value cannot be pickled", kind="pickle-failed", path=path) from error


def unpickled(data: bytes | bytearray, path: str, *, trust: bool) -> Opaque:
    """Return the opaque value; its bytes have been verified, but running them is the caller's decision."""
    if not trust:
        hint = "pass trust_pickle=True if you trust whoever wrote this run root: reading a pickle runs its code"
        raise UsageError("an opaque value may not be unpickled here", kind="pickle-not-trusted", hint=hint, path=path)
    try:
        return Opaque(pickle.loads(data))
    except Exception as error:  # the value's own code runs, and may raise anything
        hint = "import or install what the value was made of"
        raise UsageError("an opaque value cannot be unpickled", kind="pickle-failed", hint=hint, path=path) from error
