"""Leave word in the folder of a supervised attempt (``MILEPOST_SUPERVISED``), and read it: small records, visible at once."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from milepost.store.posix import Posix

ATTEMPT, STOP, SUPERVISED = "MILEPOST_ATTEMPT", "MILEPOST_STOP", "MILEPOST_SUPERVISED"
NOTICE, STOP_AT, RESUME, SKIP = "MILEPOST_NOTICE", "MILEPOST_STOP_AT", "MILEPOST_RESUME", "MILEPOST_SKIP"

T = TypeVar("T")

_MOST_BYTES = 1 << 20

log = logging.getLogger("milepost")


def folder() -> str | None:
    """Return the folder of this attempt, or None where nobody supervises."""
    return os.environ.get(SUPERVISED) or None


def leave_record(folder: str, name: str, facts: object) -> bool:
    """Write ``facts`` as ``<folder>/<name>.json``, in the place of what was there; return whether that went well.

    For another process of this machine, now: nothing is synced. What cannot be written is logged, and stops nobody.
    """
    posix, path = Posix(), os.path.join(folder, name)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with suppress(FileNotFoundError):
            posix.unlink(temporary)
        descriptor = posix.open_new(temporary)
        try:
            data = memoryview(msgspec.json.encode(facts) + b"\n")
            while data:
                data = data[posix.write(descriptor, data) :]
        finally:
            posix.close(descriptor)
        posix.replace(temporary, f"{path}.json")
    except OSError as error:
        log.warning("%s.json could not be left for whoever supervises this run: %s", path, error)
        return False
    return True


def open_left(path: str | os.PathLike[str]) -> int:
    """Open a file that a supervised process has left in its folder, to read it. Raises `OSError` for all but a plain file.

    The folder is the command's to write: of a FIFO somebody would wait for ever, and of a link read what is elsewhere.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", os.fspath(path))
    return descriptor


def read_left(path: str | os.PathLike[str], most_bytes: int = _MOST_BYTES) -> bytes:
    """Return what a supervised process has left in a file, or the beginning of that. Raises `OSError`."""
    with open(open_left(path), "rb") as file:
        return file.read(most_bytes)


def files_in(folder: str | os.PathLike[str], pattern: str) -> list[Path]:
    """Return the files of an attempt's folder; none where nobody can look into it: no descriptor is free, say."""
    try:
        return sorted(Path(folder).glob(pattern))
    except OSError:
        return []


def read_records(folder: str | os.PathLike[str], name: str, kind: type[T]) -> Iterator[T]:
    """Yield what the processes of an attempt have left as ``<name>-<pid>.json``. What cannot be read is passed over."""
    for path in files_in(folder, f"{name}-*.json"):
        try:
            yield msgspec.json.decode(read_left(path), type=kind)
        except (OSError, msgspec.DecodeError):
            continue
