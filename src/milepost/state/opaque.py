"""Carry values that can only be pickled. The one module that imports pickle: written when allowed, read when trusted."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
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


def pickled_within(value: Any, around: Mapping[str, object], path: str) -> bytes:
    """Return the bytes of ``value``; for each object of ``around`` in it they hold its name alone."""
    names = {id(held): name for name, held in around.items()}
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=5)
    pickler.persistent_id = lambda held: names.get(id(held))  # type: ignore[method-assign]
    try:
        pickler.dump(value)
    except Exception as error:  # the value's own code runs, and may raise anything
        raise UsageError("a value cannot be pickled", kind="pickle-failed", path=path, cause=_cause(error)) from error
    return out.getvalue()


def unpickled_within(data: bytes, around: Mapping[str, object], path: str) -> Any:
    """Return the value that `pickled_within` wrote, with the objects of ``around`` that are here now. The caller trusts it."""
    unpickler = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = around.__getitem__  # type: ignore[method-assign]
    try:
        return unpickler.load()
    except Exception as error:  # the value's own code runs, and may raise anything
        hint = "import or install what the value was made of"
        raise UsageError(
            "a value cannot be unpickled", kind="pickle-failed", hint=hint, path=path, cause=_cause(error)
        ) from error


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
