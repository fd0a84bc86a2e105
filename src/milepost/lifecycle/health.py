"""Look for NaN and infinity in weights and moments, at save and at resume (B16)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from milepost.errors import CorruptError
from milepost.store.base import Buffer

SCANNED = frozenset({"policy", "value", "target", "optimizer"})
"""The components that must be finite. Elsewhere (a replay buffer, statistics) an infinity may be meant."""

_SIGNED = {
    "float16": ("i2", "u2", 0x7C00, 0xFC00),
    "bfloat16": ("i2", "u2", 0x7F80, 0xFF80),
    "float8_e5m2": ("i1", "u1", 0x7C, 0xFC),
    "float8_e4m3fn": ("i1", "u1", 0x7F, 0xFF),
}
"""Small types whose patterns from a limit on are not finite: of positive numbers as signed integers, of negative as unsigned."""
_BITS = {"float8_e5m2fnuz": 0x80, "float8_e4m3fnuz": 0x80, "float8_e8m0fnu": 0xFF}
"""Types of one byte with one pattern that is not finite."""
_PIECE = 1 << 20
_RUN_BYTES = 64 << 20


class Numbers(NamedTuple):
    """Name a leaf to look at: where in memory its bytes are."""

    path: str
    dtype: str
    start: int
    stop: int


def is_scanned(component: str) -> bool:
    """Return whether a component (``policy``, ``critic/optimizer``) must be finite."""
    return component.rpartition("/")[2] in SCANNED


def nonfinite(memory: memoryview, numbers: Iterable[Numbers]) -> list[str]:
    """Return the paths of the leaves that are not finite. What lies side by side is looked at in one go.

    Each call into NumPy lets go of the interpreter, and to get it back from a busy training thread may take milliseconds.
    """
    found: list[str] = []
    for run in _runs(sorted(numbers, key=lambda each: each.start)):
        if not is_finite(run[0].dtype, memory[run[0].start : run[-1].stop]):
            found.extend(each.path for each in run if not is_finite(each.dtype, memory[each.start : each.stop]))
    return found


def _runs(numbers: Iterable[Numbers]) -> Iterator[list[Numbers]]:
    run: list[Numbers] = []
    for each in numbers:
        follows = run and (run[-1].stop, run[-1].dtype) == (each.start, each.dtype)
        if run and not (follows and each.stop - run[0].start <= _RUN_BYTES):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def is_finite(dtype: str, data: Buffer) -> bool:
    """Return whether every number in ``data``, a leaf's bytes in C order, is finite. Other dtypes are."""
    import numpy as np  # here and not above: `milepost ls` reads this package and needs no NumPy

    from milepost.state.dtypes import dtype_named

    dtype = "float16" if dtype == "complex32" else dtype
    if dtype in _BITS:
        return not bool((np.frombuffer(data, np.uint8) == _BITS[dtype]).any())
    if dtype in _SIGNED:
        signed, unsigned, positive, negative = _SIGNED[dtype]
        views = ((np.frombuffer(data, signed), positive), (np.frombuffer(data, unsigned), negative))
        return not data or all(int(view.max()) < limit for view, limit in views)
    try:
        kind = dtype_named(dtype)
    except CorruptError:
        return True
    if kind.kind not in "fc":
        return True
    numbers = np.frombuffer(data, kind)
    with np.errstate(all="ignore"):
        # One call that makes nothing, and most often the whole answer: what is not finite stays so in a sum. A sum may also
        # be too large, of finite numbers: then each is looked at.
        if np.isfinite(np.add.reduce(numbers)):
            return True
    return all(bool(np.isfinite(numbers[at : at + _PIECE]).all()) for at in range(0, len(numbers), _PIECE))
