"""Find the first element in which two recorded trees differ, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from milepost.envs.layout import values_of
from milepost.envs.plain import is_tensor, same
from milepost.records import Difference

_LONGEST = 120


def first_difference(saved: Any, live: Any, path: str) -> Difference | None:
    """Return the first element in which two recorded trees are not the same bits, and None if there is none."""
    saved, live = values_of(saved), values_of(live)
    if is_tensor(saved) and is_tensor(live):
        saved, live = saved.detach().cpu().numpy(), live.detach().cpu().numpy()
    if type(saved) is not type(live):
        return _difference(path, saved, live)
    if isinstance(saved, dict):
        if list(saved) != list(live):
            return Difference(path, f"keys {_short(list(saved))}", f"keys {_short(list(live))}", "env")
        return _first((saved[key], live[key], f"{path}[{key!r}]") for key in saved)
    if isinstance(saved, (list, tuple)):
        if len(saved) != len(live):
            return Difference(path, f"{len(saved)} items", f"{len(live)} items", "env")
        return _first((one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(saved, live, strict=True)))
    if isinstance(saved, np.ndarray):
        return _array_difference(saved, live, path)
    return None if same(saved, live) else _difference(path, saved, live)


def _first(pairs: Iterator[tuple[Any, Any, str]]) -> Difference | None:
    return next((found for one, other, path in pairs if (found := first_difference(one, other, path)) is not None), None)


def _array_difference(saved: Any, live: Any, path: str) -> Difference | None:
    if saved.dtype != live.dtype or saved.shape != live.shape:
        return Difference(path, f"{saved.dtype}{list(saved.shape)}", f"{live.dtype}{list(live.shape)}", "env")
    if saved.dtype.itemsize == 0 or saved.tobytes() == live.tobytes():
        return None
    bits = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(saved.size, -1) for array in (saved, live))
    first = int(np.flatnonzero((next(bits) != next(bits)).any(axis=1))[0])
    place = ", ".join(str(index) for index in np.unravel_index(first, saved.shape))
    return _difference(f"{path}[{place}]" if saved.ndim else path, saved.reshape(-1)[first], live.reshape(-1)[first])


def _difference(path: str, saved: Any, live: Any) -> Difference:
    one, other = _short(saved), _short(live)
    if one == other:
        one, other = (f"{text} ({_bits(value)})" for text, value in ((one, saved), (other, live)))
    return Difference(path, one, other, "env")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _bits(value: Any) -> str:
    return f"0x{value.tobytes().hex()}" if isinstance(value, np.generic) else type(value).__name__
