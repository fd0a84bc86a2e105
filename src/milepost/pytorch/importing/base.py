"""Say what an import is: what is asked for, what came, and how the files of others are opened.

Whatever is imported was written by somebody else. It is read, and never changed; within it no link is followed, and nothing
is opened that is no plain file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from milepost.clock import SystemClock
from milepost.errors import CorruptError, NotFoundError, StoreError, UsageError
from milepost.publish.signed import open_root
from milepost.publish.view import read
from milepost.store.plain_files import open_regular

KeyFile = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Options:
    """Say how something is to be imported."""

    step: int | None = None
    """The step that the generation is of, where the source does not say, or says another."""
    components: Mapping[str, str] = field(default_factory=dict)
    """Which key of the source is which component: ``{"actor": "default/policy"}``."""
    trust_pickle: bool = False
    """Whoever wrote the source may run code here: pickles are read whatever is in them."""
    key_file: KeyFile = None
    add: bool = False
    """The run root may have generations: one more is added."""
    dry_run: bool = False
    """Nothing is written: what would come is told."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Say what came."""

    kind: str
    root: str
    run_id: str
    """Empty after a dry run."""
    generation: int
    """0 after a dry run."""
    step: int
    components: tuple[str, ...]
    left_out: tuple[str, ...]
    """What did not come, or not for certain, each with its reason."""


class Kind(Protocol):
    """Know one way in which others write checkpoints."""

    name: str
    """What ``--as`` calls it."""

    def recognise(self, path: Path) -> bool:
        """Return whether what lies at ``path`` is of this kind, by names and first bytes alone. Raises nothing of its own."""

    def bring(self, path: Path, root: str, options: Options) -> Imported:
        """Read what lies at ``path`` and publish it as one generation of ``root``, whole or not at all.

        Raises `CorruptError` (kind ``damaged-source``) for what is damaged, incomplete or absurd, `UsageError` (kind
        ``pickle-not-trusted``) for what only a pickle can hold. Nothing is published then.
        """


def check_target(root: str, options: Options) -> None:
    """Raise `UsageError` (kind ``not-empty``) if ``root`` has generations and none is to be added."""
    if options.add:
        return
    store = open_root(root, SystemClock(), options.key_file, only_to_read=True)
    try:
        head = read(store).head
    except NotFoundError:
        return
    if head is not None:
        raise not_empty(root, head.number)


def not_empty(root: str, generation: int) -> UsageError:
    """Return the error for a run root that has generations, where none was to be added."""
    return UsageError(
        "there is a run in this directory already",
        kind="not-empty",
        hint="name a new directory, or --add: the import becomes its newest generation",
        root=root,
        generation=generation,
    )


def open_source(path: Path) -> BinaryIO:
    """Open the file that the user has named; a link to it is followed. Raises `NotFoundError`, `StoreError`."""
    return _opened(Path(os.path.realpath(path)))


def open_within(directory: Path, relative: str) -> BinaryIO:
    """Open a file below ``directory`` by a name that somebody else has written down.

    Raises `CorruptError` (kind ``damaged-source``) for a name that leads elsewhere, and for a link or a device in its place;
    `NotFoundError` (kind ``source-missing``) if there is none.
    """
    parts = relative.split("/")
    if os.path.isabs(relative) or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise damaged("it names a file outside of its directory", directory, file=relative)
    if len(parts) > 1:
        check_no_link(directory, "/".join(parts[:-1]))
    return _opened(directory / relative, within=directory)


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file, bytes."""
    return os.fstat(file.fileno()).st_size


Stamp = tuple[int, int]


def stamp_of(file: BinaryIO) -> Stamp:
    """Return by what it is seen that somebody has written to an open file: its size, bytes, and when that was, ns."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def check_stamp(file: BinaryIO, before: Stamp, path: Path) -> None:
    """Raise `CorruptError` (kind ``damaged-source``) if somebody has written to an open file since ``before``."""
    if stamp_of(file) != before:
        raise damaged("it was changed while it was read", path, hint="import it again when nothing writes to it any more")


def read_whole(file: BinaryIO, path: Path, most_bytes: int) -> bytes:
    """Return all of a small file. Raises `CorruptError` (kind ``damaged-source``) if it has more than ``most_bytes``."""
    if size_of(file) > most_bytes:
        raise damaged("a file is far larger than such a file can be", path, size_bytes=size_of(file), at_most=most_bytes)
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise damaged("a file grows while it is read", path, at_most=most_bytes)
    return data


OLDER = "import an older checkpoint; nothing was written, and the source is as it was"


def damaged(what: str, path: Path, *, hint: str = OLDER, **facts: object) -> CorruptError:
    """Return the error for a source that cannot be what its writer wrote."""
    return CorruptError(
        f"what is to be imported is damaged or incomplete: {what}",
        kind="damaged-source",
        hint=hint,
        path=str(path),
        **facts,
    )


def _opened(path: Path, within: Path | None = None) -> BinaryIO:
    try:
        descriptor = open_regular(str(path))
    except FileNotFoundError as error:
        if os.path.lexists(path):
            what = "a file that belongs to it is a link, or no file" if within else "it is no plain file"
            raise damaged(what, path) from error
        raise NotFoundError(
            "there is no such file",
            kind="source-missing",
            hint="name a checkpoint's file or directory; nothing was written",
            path=str(path),
        ) from error
    except OSError as error:
        raise _unreadable(error, path) from error
    return os.fdopen(descriptor, "rb")


@contextmanager
def looking_at(path: Path) -> Iterator[None]:
    """Say of what the file system raises in this block that the source cannot be read: `StoreError`, `CorruptError`."""
    try:
        yield
    except OSError as error:
        at = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
        if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
            raise damaged("something that belongs to it is no directory, or not there", at) from error
        raise _unreadable(error, at) from error


def check_no_link(directory: Path, relative: str) -> None:
    """Raise `CorruptError` (kind ``damaged-source``) if one of the directories on the way within ``directory`` is a link."""
    place = directory
    for part in relative.split("/"):
        place = place / part
        if place.is_symlink():
            raise damaged("one of its directories is a link", directory, file=relative)


def not_of_this_kind(path: Path, what: str, hint: str) -> UsageError:
    """Return the error for what is said to be of a kind, and is not."""
    return UsageError(f"this is not {what}", kind="unknown-source", hint=hint, path=str(path))


def _unreadable(error: OSError, path: Path) -> StoreError:
    return StoreError(
        f"what is to be imported cannot be read: {error.strerror}",
        kind="permission" if isinstance(error, PermissionError) else "io",
        retryable=False,
        hint="let this user read it; nothing was written",
        path=str(path),
    )


def is_plain_file(path: Path) -> bool:
    """Return whether a plain file lies at ``path``, not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
