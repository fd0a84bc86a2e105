"""Read pickles of others as data: containers, numbers, text, arrays, tensors, what DCP says of itself. Nothing in them is run.

A pickle is a program. Here its instructions are followed as far as they pile up plain values; whatever it would call is
noted, and not called (`milepost.state.opaque.read_inert`). What is on the lists below is then made by this module, with every
size checked against the bytes that are there; anything else is refused by its name. So a pickle can neither run code nor take
more memory than a few times its own size.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from milepost.errors import MilepostError, UsageError
from milepost.pytorch.importing.base import damaged
from milepost.pytorch.importing.makers import MAKERS, NAMED, Asked
from milepost.state.opaque import Call, Name, read_inert, unpickled

MOST_LEVELS = 100
"""How deep containers may nest: deeper than what may be saved, so that this is told by who knows where."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Be an object of a class that is on a list: its name, and the fields it was given. Nothing of that class is run."""

    name: str
    arguments: tuple[Any, ...] = ()
    fields: Any = None

    def __getitem__(self, name: str) -> Any:
        if not isinstance(self.fields, dict):
            raise ValueError(f"{self.name} without fields")
        return self.fields[name]


def read_pickle(data: bytes | bytearray, path: Path, *, trust: bool, what: str, records: frozenset[str] = frozenset()) -> Any:
    """Return the value of a pickle: as plain data, or, only if it is trusted, whatever it makes.

    Objects of the classes in ``records`` (``module.Name``) are read as `Record`. ``what`` says what the pickle is for, in an
    error. Raises `UsageError` (kind ``pickle-not-trusted``) naming what it would have called, `CorruptError` (kind
    ``damaged-source``) if it is damaged.
    """
    try:
        with _quiet():
            return _Making(path, what, len(data), records).made(_inert(data, path, what, records))
    except UsageError as error:
        if not trust or error.kind not in ("pickle-not-trusted", "torch-too-old"):
            raise
    return unpickled(data, str(path), trust=True).value


def read_torch(file: IO[bytes], path: Path, *, trust: bool, what: str, size_bytes: int, mapped: bool = False) -> Any:
    """Return what ``torch.save`` has written, on the CPU: tensors and plain data, or, only if it is trusted, whatever it makes.

    ``file`` can be searched, and has ``size_bytes``. ``mapped``: it is an archive on a disk, and its tensors stay there until
    they are looked at. Raises as `read_pickle`.
    """
    check_archive(file, path, size_bytes)
    if not trust:
        check_reader(path, what)
    # By its descriptor: under its name there may be another one by now.
    source: Any = f"/proc/self/fd/{file.fileno()}" if mapped else file
    try:
        with _quiet(), torch.serialization.safe_globals(_STANDS):
            return _Making(path, what, size_bytes).made(torch.load(source, map_location="cpu", weights_only=True, mmap=mapped))
    except MilepostError as error:
        if not trust or error.kind != "pickle-not-trusted":
            raise
    except Exception as error:
        if not (trust and _is_refusal(error)):
            raise _refused_by_torch(error, path, what) from error
    file.seek(0)
    try:
        return torch.load(source, map_location="cpu", weights_only=False, mmap=mapped)
    except Exception as error:  # it runs code of others
        raise damaged("torch cannot read it", path, because=_first_line(error)) from error


def check_reader(path: Path, what: str) -> None:
    """Raise `UsageError` (kind ``torch-too-old``) where torch's restricted reader can be made to run code (CVE-2025-32434)."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise UsageError(
            f"{what} holds tensors, and this torch cannot read them without running what somebody may have put there",
            kind="torch-too-old",
            hint="pip install 'torch>=2.6'; or --trust-pickle (trust_pickle=True) if you trust whoever wrote it",
            path=str(path),
            torch=torch.__version__,
        )


def check_archive(file: IO[bytes], path: Path, size_bytes: int) -> None:
    """Raise `CorruptError` if a zip archive would be larger in memory than on disk: torch never compresses what it saves."""
    file.seek(0)
    if file.read(2) == b"PK":
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise damaged("its end is missing, or bent", path, because=_first_line(error)) from error
        unpacked_bytes = sum(entry.file_size for entry in entries)
        if unpacked_bytes > size_bytes or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise damaged(
                "it is compressed, as torch never writes it", path, size_bytes=size_bytes, unpacked_bytes=unpacked_bytes
            )
    file.seek(0)


def not_trusted(path: Path, what: str, name: object) -> UsageError:
    """Return the error for a pickle that says more than data can."""
    return UsageError(
        f"{what} is a pickle which makes more than plain data, and pickles are not trusted",
        kind="pickle-not-trusted",
        hint="--trust-pickle (trust_pickle=True) if you trust whoever wrote it: reading it then runs its code",
        path=str(path),
        calls=str(name)[:200],
    )


def _inert(data: bytes | bytearray, path: Path, what: str, records: frozenset[str]) -> object:
    def allow(name: Name) -> None:
        if _canonical(name) not in MAKERS and str(name) not in records and not _is_dtype(name):
            raise not_trusted(path, what, name)

    try:
        return read_inert(data, allow)
    except MilepostError:
        raise
    except Exception as error:  # the opcodes of a damaged pickle may do anything to its own stack
        raise damaged(f"{what} cannot be read", path, because=_first_line(error)) from error


def _canonical(name: Name) -> str:
    module = name.module.replace("numpy.core.", "numpy._core.").replace("__builtin__", "builtins")
    return f"{module}.{name.name}"


def _is_dtype(name: Name) -> bool:
    return name.module == "torch" and isinstance(vars(torch).get(name.name), torch.dtype)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _is_refusal(error: BaseException) -> bool:
    # All that torch's restricted reader refuses has this first line; only a damaged pickle has it, too.
    return "Weights only load failed" in str(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # torch warns whoever reads of what the writer did: of an old class of storage, of an odd protocol
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _refused_by_torch(error: BaseException, path: Path, what: str) -> MilepostError:
    if not _is_refusal(error):
        return damaged("torch cannot read it", path, because=_first_line(error))
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    return not_trusted(path, what, named[1] if named else "something that torch does not name")


# --- making values ---


@dataclass(slots=True)
class _Making:
    """Make values of what a pickle says."""

    path: Path
    what: str
    size_bytes: int
    records: frozenset[str] = frozenset()
    _done: dict[int, tuple[Any, int]] = field(default_factory=dict)
    _under_way: set[int] = field(default_factory=set)
    _held: list[object] = field(default_factory=list)
    _count: int = 0

    def made(self, value: object) -> Any:
        """Return the value. What of it is bent raises `CorruptError`, what is too much to be data `UsageError`."""
        try:
            return self._made(value, 0)
        except MilepostError:
            raise
        except Exception as error:  # arguments of any type and number stand where a few are right
            raise damaged(f"{self.what} does not hold what it says", self.path, because=_first_line(error)) from error

    def _made(self, value: object, level: int) -> Any:
        known = self._done.get(id(value))
        if known is not None:
            self._count_values(known[1])
            return known[0]
        self._count_values(1)
        if isinstance(value, type) and issubclass(value, _Stand):
            value = value.name
        if not isinstance(value, list | tuple | dict | set | frozenset | Call | Name | torch.Tensor):
            if isinstance(value, bytes | bytearray | str | int | float | complex | torch.dtype | type(None)):
                return value
            raise not_trusted(self.path, self.what, type(value).__name__)
        if level > MOST_LEVELS or id(value) in self._under_way:
            raise damaged("containers nest without end", self.path)
        before = self._count
        self._under_way.add(id(value))
        found = self._container(value, level + 1)
        self._under_way.discard(id(value))
        self._done[id(value)] = (found, self._count - before + 1)
        self._held.append(value)  # so that no other value gets its id
        return found

    def _count_values(self, count: int) -> None:
        # One list may stand in another ten times, that in a third ten times: a small file of ten thousand million values.
        self._count += count
        if self._count > 1000 + 8 * self.size_bytes:
            raise damaged("it stands for far more than its bytes can hold", self.path, size_bytes=self.size_bytes)

    def _container(self, value: object, level: int) -> Any:
        if isinstance(value, Call):
            return self._call(value, level)
        if isinstance(value, Name):
            return self._name(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict):
            pairs = [(self._made(key, level), self._made(item, level)) for key, item in value.items()]
            # torch keeps the versions of a module's layout in an attribute of an OrderedDict
            return _with_attributes(OrderedDict(pairs), value) if isinstance(value, OrderedDict) else dict(pairs)
        assert isinstance(value, list | tuple | set | frozenset)
        kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        made = kind(self._made(item, level) for item in value)
        return torch.Size(made) if isinstance(value, torch.Size) else made

    def _call(self, call: Call, level: int) -> Any:
        if not isinstance(call.what, Name):
            raise damaged(f"{self.what} calls what is no function", self.path)
        arguments = [self._made(argument, level) for argument in _tuple(call.arguments)]
        state = None if call.state is None else self._made(call.state, level)
        items = [(self._made(key, level), self._made(item, level)) for key, item in call.items]
        elements = [self._made(element, level) for element in call.elements]
        if str(call.what) in self.records:
            return Record(str(call.what), tuple(arguments), state)
        maker = MAKERS.get(_canonical(call.what))
        if maker is None:
            raise not_trusted(self.path, self.what, call.what)
        return maker(Asked(self, arguments, state, items, elements))

    def _name(self, name: Name) -> Any:
        if _is_dtype(name):
            return vars(torch)[name.name]
        if str(name) in self.records or _canonical(name) in NAMED:
            return name
        raise not_trusted(self.path, self.what, name)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided and tensor.device.type == "cpu":
            self.check_room(tensor.numel() * tensor.element_size())
        return tensor

    def refused(self, name: object) -> UsageError:
        """Return the error for what only a pickle that is trusted may call."""
        return not_trusted(self.path, self.what, name)

    def storage(self, data: bytes) -> object:
        """Return the storage that torch has written as ``data``: how a tensor lies within a pickle."""
        with contextlib.closing(io.BytesIO(data)) as file:
            check_archive(file, self.path, len(data))
            check_reader(self.path, self.what)
            return torch.load(file, map_location="cpu", weights_only=True)

    def check_room(self, size_bytes: int) -> None:
        """Raise unless so many bytes of a tensor can come of this file: a few numbers may be told to stand for millions."""
        if size_bytes > (1 << 20) + 8 * self.size_bytes:
            raise damaged("a tensor is larger than the file it is in", self.path, tensor_bytes=size_bytes)


def _tuple(value: object) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError("arguments that are no tuple")
    return value


def _with_attributes(made: OrderedDict[Any, Any], value: object) -> OrderedDict[Any, Any]:
    attributes = getattr(value, "_metadata", None)
    if attributes is not None:
        made._metadata = attributes  # type: ignore[attr-defined]
    return made


class _Stand(Call):
    """Stand, in what torch reads, for a function that it does not know: one class a name. It is called, and does nothing."""

    name = Name("", "")

    def __init__(self, *arguments: object) -> None:
        super().__init__(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


def _stands() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    found: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = []
    for full in MAKERS:
        module, _, name = full.rpartition(".")
        if module.startswith("numpy") or full in ("builtins.frozenset", "builtins.bytes"):
            kind = type(name, (_Stand,), {"name": Name(module, name)})
            older = full.replace("numpy._core.", "numpy.core.").replace("builtins.", "__builtin__.")
            found += [(kind, full), (kind, older)]
    return found


_STANDS = _stands()
