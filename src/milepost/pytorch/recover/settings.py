"""Say in plain text what a learning-rate schedule is made of: numbers, and functions by their code and by what they hold.

What a value says is text, since it is only compared and shown: ``1`` and ``1.0`` are one setting, a list and a tuple of the
same numbers are. Whatever cannot be told in text has its name and the reason kept: it is never taken for equal in silence.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

_LARGEST_BYTES = 2**16
_DEEPEST = 8
_MOST = 2000
_LONGEST = 400


@dataclass(slots=True)
class Found:
    """Collect what was found, by its path."""

    settings: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, str] = field(default_factory=dict)
    """What may be a setting, or a counter that moves: nobody has said."""
    opaque: dict[str, str] = field(default_factory=dict)
    """What cannot be compared, with the reason."""
    within: set[int] = field(default_factory=set)
    """The functions that are being told: one may call itself."""

    @property
    def is_full(self) -> bool:
        """Say whether there is more than anybody would read."""
        return len(self.settings) + len(self.doubtful) >= _MOST

    def note(self, path: str, text: str, *, certain: bool) -> None:
        """Keep one value; a long one by its beginning and its digest."""
        if self.is_full:
            self.opaque["..."] = f"more than {_MOST} values"
            return
        if len(text) > _LONGEST:
            digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
            text = f"{text[:80]}... ({len(text)} characters, sha256 {digest})"
        (self.settings if certain else self.doubtful)[path] = text


class _Untold(Exception):
    """Report a value that no text can stand for."""


def text_of(value: Any, depth: int = 0) -> str:
    """Return the text of a plain value: a number, text, or containers of them. Raises `_Untold`."""
    if depth > _DEEPEST:
        raise _Untold
    if value is None or isinstance(value, bool | str | bytes):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, int | float | complex):
        return _number(value)
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(text_of(one, depth + 1) for one in value)}]"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(text_of(one, depth + 1) for one in value))}}}"
    if isinstance(value, Mapping):
        pairs = sorted((text_of(key, depth + 1), text_of(one, depth + 1)) for key, one in value.items())
        return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
    if isinstance(value, np.ndarray | np.generic | torch.Tensor) and value.nbytes <= _LARGEST_BYTES:
        return text_of(value.tolist(), depth + 1)
    raise _Untold


def _number(value: complex) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return repr(int(value))  # a configuration says 1 where the code says 1.0
    base = next(kind for kind in (int, float, complex) if isinstance(value, kind))
    return base.__repr__(value)  # a subclass (NumPy's, an IntEnum) would say its own name


def describe(found: Found, path: str, value: Any, *, certain: bool = True, depth: int = 0) -> None:
    """Note what a value is made of, under its path."""
    try:
        if not (isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value)):
            found.note(path, text_of(value), certain=certain)
            return
    except _Untold:
        pass  # not in one text: told part by part below, or named as what cannot be compared
    if depth > _DEEPEST:
        found.opaque[path] = "too deep"
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        for key, one in value.items():
            describe(found, f"{path}.{key}", one, certain=certain, depth=depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) > 1 and all(one is value[0] for one in value):  # one function for all groups is told once
            describe(found, f"{path}[*]", value[0], certain=certain, depth=depth + 1)
            return
        for index, one in enumerate(value):
            describe(found, f"{path}[{index}]", one, certain=certain, depth=depth + 1)
    elif callable(value) and not hasattr(value, "state_dict"):
        _describe_callable(found, path, value, certain=certain, depth=depth + 1)
    else:
        found.opaque[path] = f"an object of {name_of_class(type(value))}"


def name_of_class(kind: type) -> str:
    """Return a class's module and name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe_callable(found: Found, path: str, value: Any, *, certain: bool, depth: int) -> None:
    if isinstance(value, functools.partial):
        _describe_callable(found, path, value.func, certain=certain, depth=depth + 1)
        for index, one in enumerate(value.args):
            describe(found, f"{path}({index})", one, certain=certain, depth=depth + 1)
        for name, one in value.keywords.items():
            describe(found, f"{path}.{name}", one, certain=certain, depth=depth + 1)
    elif isinstance(value, types.MethodType) and isinstance(function := value.__func__, types.FunctionType):
        found.note(path, _name_of(value), certain=certain)
        _describe_code(found, path, function, certain=certain, depth=depth)
        _describe_used(found, f"{path}.self", value.__self__, function.__code__, certain=certain, depth=depth + 1)
    elif isinstance(value, types.FunctionType):
        found.note(path, _name_of(value), certain=certain)
        _describe_code(found, path, value, certain=certain, depth=depth)
    elif isinstance(value, types.BuiltinFunctionType | type):
        found.note(path, _name_of(value), certain=certain)
    else:
        found.note(path, name_of_class(type(value)), certain=certain)
        _describe_attributes(found, path, value, depth=depth)
        call: object = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, types.FunctionType):
            _describe_code(found, path, call, certain=certain, depth=depth)
        else:
            found.opaque[f"{path}.__call__"] = "not written in Python"


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _describe_attributes(found: Found, path: str, value: Any, *, depth: int) -> None:
    """Note an object's attributes: those named as its constructor's parameters are settings, others may be counters."""
    for name, one in _attributes(value):
        describe(found, f"{path}.{name}", one, certain=is_setting(type(value), name), depth=depth + 1)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def is_setting(kind: type, name: str) -> bool:
    """Say whether an attribute is a setting: named as a parameter of a constructor, or of a class that is only a namespace."""
    makers = [base.__dict__["__init__"] for base in kind.__mro__ if "__init__" in base.__dict__]
    written = [inspect.signature(make).parameters for make in makers if isinstance(make, types.FunctionType)]
    takes_any = any(one.kind is one.VAR_KEYWORD for parameters in written[:1] for one in parameters.values())
    return not written or takes_any or any(name.strip("_") in parameters for parameters in written)


def _describe_code(found: Found, path: str, function: types.FunctionType, *, certain: bool, depth: int) -> None:
    """Note a function's code, and the values it holds: defaults, what it closes over, globals that it names."""
    if id(function) in found.within or found.is_full:
        return
    found.within.add(id(function))
    code = function.__code__
    found.note(f"{path}:code", _digest_of(code), certain=certain)
    found.note(f"{path}:constants", text_of(_constants(code, function.__doc__)), certain=certain)
    for name, one in _defaults(function):
        describe(found, f"{path}.{name}", one, certain=certain, depth=depth + 1)
    for name, held, known in _reached(function):
        if known:
            _describe_held(found, f"{path}.{name}", held, code, certain=certain, depth=depth + 1)
        else:
            found.opaque[f"{path}.{name}"] = "a name without a value"
    found.within.discard(id(function))


def _reached(function: types.FunctionType) -> Iterator[tuple[str, Any, bool]]:
    """Yield what a function closes over, and the globals that it names; and whether there is a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents, True
        except ValueError:
            yield name, None, False
    for name in _names(function.__code__, "LOAD_GLOBAL", "LOAD_NAME"):
        if name in function.__globals__:
            yield name, function.__globals__[name], True


def _describe_held(found: Found, path: str, held: Any, code: types.CodeType, *, certain: bool, depth: int) -> None:
    """Note a value that a function reaches: a plain one whole; of modules and classes the name; of an object what is used."""
    if isinstance(held, types.ModuleType):
        found.note(path, held.__name__, certain=certain)
    elif isinstance(held, type):
        found.note(path, name_of_class(held), certain=certain)
    elif isinstance(held, _FUNCTIONS) or (_is_plain(held) and not isinstance(held, Mapping)):
        describe(found, path, held, certain=certain, depth=depth)
    else:
        _describe_used(found, path, held, code, certain=certain, depth=depth)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def _is_plain(value: Any) -> bool:
    try:
        text_of(value)
    except _Untold:
        return False
    return True


def _describe_used(found: Found, path: str, held: Any, code: types.CodeType, *, certain: bool, depth: int) -> None:
    """Note of a configuration only what the function names: a run's seed and output path change, and its schedule does not."""
    if depth > _DEEPEST:
        found.opaque[path] = "too deep"
        return
    if isinstance(held, Mapping):
        used = {key: held[key] for key in _texts(code) if key in held}
    else:
        attributes = dict(_attributes(held))
        used = {name: attributes[name] for name in _names(code, "LOAD_ATTR", "LOAD_METHOD") if name in attributes}
    for name, one in used.items():
        sure = certain and (isinstance(held, Mapping) or is_setting(type(held), name))
        _describe_held(found, f"{path}.{name}", one, code, certain=sure, depth=depth + 1)
    if used:
        return
    if callable(held):
        describe(found, path, held, certain=certain, depth=depth)
    else:
        found.opaque[path] = f"what is used of an object of {name_of_class(type(held))}"


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.default is not parameter.empty:
            yield name, parameter.default


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType, *ways: str) -> list[str]:
    """Return the names that code loads in these ways: a global called as some attribute is another thing."""
    return sorted({str(one.argval) for part in _codes(code) for one in dis.get_instructions(part) if one.opname in ways})


def _texts(code: types.CodeType) -> list[str]:
    return sorted({constant for one in _codes(code) for constant in one.co_consts if isinstance(constant, str)})


def _constants(code: types.CodeType, doc: str | None) -> list[Any]:
    constants = [one for part in _codes(code) for one in part.co_consts if not isinstance(one, types.CodeType)]
    return [one for one in constants if one is not Ellipsis and (doc is None or one != doc)]


def _digest_of(code: types.CodeType) -> str:
    """Return the digest of what a function does: not of where it stands, nor of its docstring."""
    digest = hashlib.sha256()
    for one in _codes(code):
        digest.update(one.co_code)
        digest.update(repr(one.co_names).encode())
    return digest.hexdigest()[:16]
