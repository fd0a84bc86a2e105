"""Look for NaN and infinity in weights and moments, at save and at resume (B16)."""

from __future__ import annotations

from milepost.errors import CorruptError
from milepost.store.base import Buffer

SCANNED = frozenset({"policy", "value", "target", "optimizer"})
"""The components that must be finite. Elsewhere (a replay buffer, statistics) an infinity may be meant."""

_BITS = {
    "bfloat16": ("uint16", 0x7F80, 0x7F80),
    "float8_e5m2": ("uint8", 0x7C, 0x7C),
    "float8_e4m3fn": ("uint8", 0x7F, 0x7F),
    "float8_e5m2fnuz": ("uint8", 0xFF, 0x80),
    "float8_e4m3fnuz": ("uint8", 0xFF, 0x80),
    "float8_e8m0fnu": ("uint8", 0xFF, 0xFF),
}
"""For the types NumPy lacks: how to view the bits, a mask, and the masked bits that mean not finite."""
_PIECE = 1 << 20


def is_scanned(component: str) -> bool:
    """Return whether a component (``policy``, ``critic/optimizer``) must be finite."""
    return component.rpartition("/")[2] in SCANNED


def is_finite(dtype: str, data: Buffer) -> bool:
    """Return whether every number in ``data``, a leaf's bytes in C order, is finite. Other dtypes are."""
    import numpy as np  # here and not above: `milepost ls` reads this package and needs no NumPy

    from milepost.state.dtypes import dtype_named

    if dtype in _BITS:
        view, mask, bad = _BITS[dtype]
        bits = np.frombuffer(data, view)
        return not any(bool(((bits[at : at + _PIECE] & mask) == bad).any()) for at in range(0, len(bits), _PIECE))
    try:
        kind = dtype_named("float16" if dtype == "complex32" else dtype)
    except CorruptError:
        return True
    if kind.kind not in "fc":
        return True
    numbers = np.frombuffer(data, kind)
    return all(bool(np.isfinite(numbers[at : at + _PIECE]).all()) for at in range(0, len(numbers), _PIECE))
