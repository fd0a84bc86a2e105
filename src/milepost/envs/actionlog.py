"""Keep the actions of an episode in order, compactly: bytes that only grow, in pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milepost.errors import CorruptError

PIECE_BYTES = 1 << 14
"""A log is saved in pieces of this size: all but the last equal the parent generation's, and cost nothing."""

Form = tuple[Any, ...]
"""What an action is, without its value: ``("array", "<f4", (2,))``. Actions of one form have equally many bytes."""

_NUMBERS = {bool: struct.Struct("<?"), int: struct.Struct("<q"), float: struct.Struct("<d")}
_KINDS = "biufcSU"
_NAMED = {kind.__name__: packing for kind, packing in _NUMBERS.items()}


class NotAnAction(TypeError):
    """Report a value that cannot be kept here: text, objects, integers of more than 64 bits."""


class Pieces:
    """Be a string of bytes that only grows."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._full = [piece for piece in pieces if len(piece) == PIECE_BYTES]
        self._rest = bytearray(b"".join(piece for piece in pieces if len(piece) != PIECE_BYTES))

    def __len__(self) -> int:
        return PIECE_BYTES * len(self._full) + len(self._rest)

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        self._rest += data
        while len(self._rest) >= PIECE_BYTES:
            self._full.append(bytes(self._rest[:PIECE_BYTES]))
            del self._rest[:PIECE_BYTES]

    def pieces(self) -> list[bytes]:
        """Return all of it; full pieces are the same objects each time."""
        return [*self._full, bytes(self._rest)] if self._rest else list(self._full)

    def records(self, size: int, count: int) -> Iterator[bytes]:
        """Yield the first ``count`` records of ``size`` bytes."""
        data = b"".join(self.pieces())
        for index in range(count):
            yield data[index * size : (index + 1) * size]


@dataclass(slots=True)
class _Run:
    """Hold actions of one form that follow each other."""

    form: Form
    size: int
    count: int = 0
    data: Pieces = field(default_factory=Pieces)


class ActionLog:
    """Be the actions of one episode. Those of one form in a row share one string of bytes: mostly there is but one."""

    def __init__(self, tree: Sequence[dict[str, Any]] = (), longest: int | None = None) -> None:
        self._runs = [_Run(_tuples(run["form"]), run["size"], run["count"], Pieces(run["data"])) for run in tree]
        if any(run.count < 0 or run.size * run.count != len(run.data) for run in self._runs):
            raise CorruptError("a stored log of actions is shorter or longer than it says", kind="damaged-tree")
        self.steps = sum(run.count for run in self._runs)
        if longest is not None and self.steps > longest:
            # Actions without bytes, None say, take no room: nothing else bounds their number.
            raise CorruptError(
                "a stored log has more actions than are kept", kind="damaged-tree", actions=self.steps, most=longest
            )

    def append(self, action: Any) -> None:
        """Add an action by value. Raises `NotAnAction`, and adds nothing, if it cannot be kept."""
        form, data = _taken_apart(action)
        if not self._runs or self._runs[-1].form != form:
            self._runs.append(_Run(form, len(data)))
        run = self._runs[-1]
        run.data.append(data)
        run.count += 1
        self.steps += 1

    def __iter__(self) -> Iterator[Any]:
        """Yield the actions, each of the type it had."""
        for run in self._runs:
            for data in run.data.records(run.size, run.count):
                yield _put_together(run.form, data)[0]

    def tree(self) -> list[dict[str, Any]]:
        """Return the log as a plain tree. Costs what was added since its last full piece, and a reference a piece."""
        return [{"form": run.form, "size": run.size, "count": run.count, "data": run.data.pieces()} for run in self._runs]


def _taken_apart(action: Any) -> tuple[Form, bytes]:
    kind = type(action)
    if kind is np.ndarray and action.dtype.kind in _KINDS:
        return ("array", action.dtype.str, action.shape), action.tobytes()
    if isinstance(action, np.generic) and action.dtype.kind in _KINDS:
        return ("scalar", action.dtype.str), action.tobytes()
    if action is None:
        return ("none",), b""
    if kind in _NUMBERS:
        return _number(action)
    if kind is dict and all(type(key) in (str, int) for key in action):
        parts = [_taken_apart(part) for part in action.values()]
        return ("dict", tuple(action), *(form for form, _ in parts)), b"".join(data for _, data in parts)
    if kind in (tuple, list):
        parts = [_taken_apart(part) for part in action]
        return (kind.__name__, *(form for form, _ in parts)), b"".join(data for _, data in parts)
    raise NotAnAction(kind.__name__)


def _number(action: Any) -> tuple[Form, bytes]:
    try:
        return (type(action).__name__,), _NUMBERS[type(action)].pack(action)
    except struct.error as error:
        raise NotAnAction("an int of more than 64 bits") from error


def _put_together(form: Form, data: bytes) -> tuple[Any, bytes]:
    """Return a value of this form, made from the beginning of ``data``, and the rest of it."""
    kind, *inner = form
    if kind in ("array", "scalar"):
        dtype = np.dtype(inner[0])
        shape = inner[1] if kind == "array" else ()
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data[:size], dtype).reshape(shape)
        return (array.copy() if kind == "array" else array[()]), data[size:]
    if kind == "none":
        return None, data
    if kind in _NAMED:
        size = _NAMED[kind].size
        return _NAMED[kind].unpack(data[:size])[0], data[size:]
    keys = inner.pop(0) if kind == "dict" else ()
    parts = []
    for part in inner:
        value, data = _put_together(part, data)
        parts.append(value)
    return (dict(zip(keys, parts, strict=True)) if kind == "dict" else list(parts) if kind == "list" else tuple(parts)), data


def _tuples(form: Any) -> Form:
    return tuple(_tuples(part) if isinstance(part, (list, tuple)) else part for part in form)
