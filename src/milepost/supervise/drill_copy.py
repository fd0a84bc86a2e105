"""Copy a run root for a drill: what never changes by a second name, the rest by its bytes; and unshare what is to be damaged.

The original is read, and nothing else. A trainer may be writing to it: what is copied is one state that it was in.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from milepost.clock import Clock
from milepost.errors import InternalError, NotFoundError, StoreError, UsageError
from milepost.publish import layout
from milepost.publish.view import View, read
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from milepost.store.resolve import REDIRECT, directory_of, name_from

_LOOKS = 100
"""How often a root is looked at again since its trainer has published or retired something while it was copied."""
_NO_SECOND_NAME = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_SPARE_BYTES = 64 << 20

_SINGLE = (layout.RUN, layout.LATEST, layout.PROGRESS, layout.SCRUB)
"""Copied last. Not among them: the lock and the lease, which name who writes to the original, and the ballast, which is room."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Say what of a root was copied, and how."""

    named: str
    """What the user calls it."""
    at: Path
    """Where the copy lies."""
    linked: int
    copied: int
    copied_bytes: int
    newest: int
    """The number of its newest generation; 0 if it has none."""
    step: int


def check_root(named: str) -> Path:
    """Return the directory of a run root that a user names. Raises `NotFoundError` if it holds no run."""
    path = Path(os.path.abspath(os.path.expanduser(named)))
    moved = Path(os.environ.get(REDIRECT) or "", directory_of(name_from(named, os.getcwd())))
    path = moved.absolute() if REDIRECT in os.environ and moved.is_dir() else path  # where the command itself finds it
    if "://" in named:
        raise UsageError("a drill copies directories", kind="bad-url", hint="name the run root by its path", root=named)
    if not (path / layout.RUN).is_file() and not (path / layout.TERMS).is_dir():
        hint = "check the path; a run root holds milepost.json. A command that is to begin anew needs no --root"
        raise NotFoundError("there is no milepost run here", kind="no-such-run", hint=hint, root=named)
    return path


def place(copied: Copied, into: Path, work: Path, clock: Clock) -> None:
    """Copy a copied root once more, to where a command that runs in ``work``, redirected to ``into``, will find it.

    A command may call it as the user does, or by its whole path: all but one of the names are links to the copy.
    """
    source = os.path.abspath(os.path.expanduser(copied.named))
    real, here = os.path.realpath(source), os.getcwd()
    spelled = [copied.named, source, real, f"file://{source}", name_from(source, here), name_from(real, here)]
    if ".." in Path(copied.named).parts:
        # Seen from another directory that is another path: runs whose roots have other names could not be compared.
        spelled.insert(0, source)
    first, *others = dict.fromkeys(directory_of(name_from(each, str(work))) for each in spelled)
    copy_root(copied.at, into / first, clock)
    for other in others:
        if not (into / other).is_symlink():
            os.symlink(first, into / other)


def copy_root(source: Path, to: Path, clock: Clock, named: str = "") -> Copied:
    """Copy a run root as it was at one moment. Files that never change get a second name where the file system allows it.

    Raises `StoreError` (kind ``unstable``) if its trainer publishes faster than it can be copied, ``disk-full`` before
    anything is copied that does not fit.
    """
    store, taking = LocalStore(str(source), clock), _Taking(source, to)
    to.mkdir(parents=True)
    for _ in range(_LOOKS):
        # Manifests are listed before what they name, terms and hints after them: as a reader does it, who must not take what
        # was published meanwhile for lost. Then all is listed again: only if it is the same, the copy is one moment's.
        before = _listing(source)
        try:
            view = read(store)
            for name in _immutable(view, before):
                taking.take(name)
            for name in _changing(source):
                taking.copy(name)
        except FileNotFoundError:
            continue  # retired since it was listed; and its successor is not in that listing
        if _listing(source) == before:
            _remove_others(to, {*_immutable(view, before), *_changing(source)})
            newest = (view.head.number, view.head.step) if view.head else (0, 0)
            return Copied(named or str(source), to, taking.linked, taking.copied, taking.copied_bytes, *newest)
    raise StoreError(
        "this run publishes faster than it can be copied",
        kind="unstable",
        retryable=True,
        hint="put the scratch directory (TMPDIR) on the file system of the run root: files are not copied then, but linked",
        root=str(source),
    )


class _Taking:
    """Bring files of one directory to another, each once."""

    def __init__(self, source: Path, to: Path) -> None:
        self._source, self._to, self._posix = source, to, Posix()
        self.linked = self.copied = self.copied_bytes = 0

    def take(self, name: str) -> None:
        """Give a file that never changes a second name; where that cannot be, copy it."""
        to = self._to / name
        if to.exists():
            return
        status = os.lstat(self._source / name)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("not a plain file", kind="link", hint="milepost verify looks at all of it", path=self._source / name)
        to.parent.mkdir(exist_ok=True)
        try:
            self._posix.link(str(self._source / name), str(to))
            self.linked += 1
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise
            self._check_room(status.st_size)
            self.copy(name)

    def copy(self, name: str) -> None:
        """Copy a file; FileNotFoundError if it is gone. What was copied before is not written over, but made anew."""
        to = self._to / name
        to.parent.mkdir(exist_ok=True)
        to.unlink(missing_ok=True)
        shutil.copyfile(self._source / name, to, follow_symlinks=False)
        self.copied += 1
        self.copied_bytes += to.stat().st_size

    def _check_room(self, size_bytes: int) -> None:
        free_bytes = self._posix.free_bytes(str(self._to))
        if free_bytes < size_bytes + _SPARE_BYTES:
            hint = "set TMPDIR to a directory on the file system of the run root: files are not copied then, but linked"
            raise StoreError(
                "no room for a copy of the run",
                kind="disk-full",
                retryable=False,
                hint=hint,
                needed_bytes=size_bytes,
                free_bytes=free_bytes,
                path=self._to,
            )


def _listing(source: Path) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sorted(_names_in(source / part))) for part in (layout.GENERATIONS, layout.TERMS, layout.PINS))


def _immutable(view: View, listing: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    manifests = [layout.GENERATIONS + name for name in listing[0]]
    yield from (name for name in manifests if layout.generation_number(name) is not None)
    yield from dict.fromkeys(blob.name for each in view.live.values() for blob in each.blobs)


def _changing(source: Path) -> Iterator[str]:
    for part in (layout.TERMS, layout.PINS, layout.QUARANTINE, layout.EVENTS):
        yield from (part + name for name in sorted(_names_in(source / part)) if layout.is_other_record(part + name))
    yield from (name for name in _SINGLE if (source / name).is_file())


def _names_in(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove_others(to: Path, names: set[str]) -> None:
    for folder, _, files in os.walk(to):
        for file in files:
            path = Path(folder, file)
            if path.relative_to(to).as_posix() not in names:
                path.unlink()


def unshare(path: Path, scratch: Path) -> None:
    """Give a file of a copy bytes of its own, so that damage to it damages nothing else.

    Raises `InternalError` if the file is not below ``scratch``, or is still shared: nothing is damaged then.
    """
    if not path.resolve().is_relative_to(scratch.resolve()) or not stat.S_ISREG(os.lstat(path).st_mode):
        raise InternalError("a drill would have damaged a file that is not its own", kind="not-a-copy", path=path)
    own = path.with_name(path.name + ".own")
    shutil.copyfile(path, own)
    Posix().replace(str(own), str(path))
    if path.stat().st_nlink != 1:
        raise InternalError("a drill would have damaged a file that has another name", kind="not-a-copy", path=path)
