"""Make places that are unlike an ordinary local disk: by mounting, by giving up rights, by answering system calls otherwise."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from milepost.store.posix import Posix
from milepost.testing.faults import run_in_child

P = ParamSpec("P")
T = TypeVar("T")

NOBODY = 65534
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000


class Changed(Posix):
    """Answer the calls of some names otherwise, every time."""

    def __init__(self, **instead: Callable[..., object]) -> None:
        self.instead = instead

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.instead.get(name, function)(*args, **kwargs)  # type: ignore[return-value]


def refuse(number: int) -> Callable[..., object]:
    """Return a call that fails in the same way each time."""

    def refused(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return refused


def refuse_once(number: int, then: Callable[P, T]) -> Callable[P, T]:
    """Return a call that fails at first, and then is ``then``."""
    failed: list[bool] = []

    def refused(*args: P.args, **kwargs: P.kwargs) -> T:
        if not failed:
            failed.append(True)
            raise OSError(number, os.strerror(number))
        return then(*args, **kwargs)

    return refused


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@contextmanager
def open_to_all() -> Iterator[Path]:
    """Give a directory which other users may enter, as pytest's own they may not."""
    made = Path(tempfile.mkdtemp(prefix="milepost-places-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def as_nobody(action: Callable[[], object]) -> None:
    """Run ``action`` in a child that belongs to another user; fail if it fails."""
    if os.geteuid() != 0:
        pytest.skip("not run: only root can become another user")

    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        action()

    assert run_in_child(run) == 0


def with_own_mounts(action: Callable[[], object]) -> None:
    """Run ``action`` in a child that may mount what it likes, seen by nobody else; fail if it fails."""
    if run_in_child(_unshare) != 0:
        pytest.skip("not run: mounting is not allowed here")

    def run() -> None:
        _unshare()
        action()

    assert run_in_child(run) == 0


def mount_read_only(path: Path) -> None:
    """Make a directory as read-only as a mount can make it."""
    _mount(str(path), path, None, _BIND)
    _mount(None, path, None, _BIND | _REMOUNT | _READ_ONLY)


def mount_memory(path: Path) -> None:
    """Mount a small tmpfs."""
    _mount("tmpfs", path, "tmpfs", 0, "size=16m")


def mount_overlay(path: Path, lower: Path, upper: Path, work: Path, *more: str) -> None:
    """Mount layers, as a container has them."""
    _mount("overlay", path, "overlay", 0, ",".join([f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}", *more]))


def _unshare() -> None:
    if _LIBC.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _mount(None, Path("/"), None, _RECURSIVE | _PRIVATE)


def _mount(source: str | None, target: Path, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, str(target), kind)]
    if _LIBC.mount(*texts, ctypes.c_ulong(flags), None if options is None else options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


NO_LINKS = {"link": refuse(errno.EPERM)}
NEITHER = {"link": refuse(errno.ENOTSUP), "rename_new": refuse(errno.EINVAL)}
