"""Carry values that can only be pickled. The one module that imports pickle: written when allowed, read when trusted.

What somebody else has pickled, and is not trusted, can be looked at all the same: as what it says, of which nothing is run.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

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


@dataclass(frozen=True, slots=True)
class Name:
    """Stand for a class or function that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Call:
    """Stand for what a pickle would have made: by calling ``what``, then handing it a state, items and elements."""

    what: object
    arguments: object = ()
    state: object = None
    items: list[tuple[Any, Any]] = field(default_factory=list)
    elements: list[Any] = field(default_factory=list)

    def __setitem__(self, key: object, value: object) -> None:
        self.items.append((key, value))

    def append(self, element: object) -> None:
        """Take one element, as a list does."""
        self.elements.append(element)

    def extend(self, elements: Iterable[object]) -> None:
        """Take some elements, as a list does."""
        self.elements.extend(elements)


def read_inert(data: bytes | bytearray, allow: Callable[[Name], None]) -> object:
    """Return what a pickle says: containers and plain values, and a `Call` for whatever it would have made. Nothing is run.

    ``allow`` raises for what may not even be named. A pickle that is damaged, or bent, raises any exception of pickle's own.
    Containers may be shared, and may contain themselves.
    """
    return _Inert(io.BytesIO(data), allow).load()


class _Inert(pickle._Unpickler):
    """Read opcodes and call nothing. Slower than the one in C; whose memo is a table as long as any number in the file says."""

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}
    stack: list[Any]
    append: Callable[[object], None]

    def __init__(self, file: io.BytesIO, allow: Callable[[Name], None]) -> None:
        super().__init__(file)
        self._allow = allow

    def find_class(self, module: str, name: str) -> Any:
        found = Name(module, name)
        self._allow(found)
        return found

    def get_extension(self, code: int) -> None:
        self._allow(Name("copyreg", f"extension {code}"))
        raise pickle.UnpicklingError("an extension code")

    def _instantiate(self, what: object, arguments: list[object]) -> None:
        self.append(Call(what, tuple(arguments)))

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = Call(self.stack[-1], arguments)

    def _reduce_with_names(self) -> None:
        named, arguments = self.stack.pop(), self.stack.pop()
        self.stack[-1] = Call(self.stack[-1], (*arguments, named) if named else arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, Call):
            raise pickle.UnpicklingError("a state for what has none")
        made.state = state

    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = _reduce
    dispatch[pickle.NEWOBJ_EX[0]] = _reduce_with_names
    dispatch[pickle.BUILD[0]] = _build
