"""Turn what a user names a run root by into a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from milepost.clock import Clock
from milepost.errors import UsageError
from milepost.store.base import Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Where: TypeAlias = "str | os.PathLike[str] | Store"

ENTRY_POINTS = "milepost.stores"
"""The entry-point group for third parties: name = URL scheme, value = a callable ``(url, clock) -> Store``."""

REDIRECT = "MILEPOST_ROOT"
"""The environment variable that names a directory in which every run root of a program is put, instead of where it says."""

_LONGEST_NAME = 120
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LATER = ("s3", "gs", "az")


def open_store(where: Where, clock: Clock) -> Store:
    """Return the store that ``where`` names: a path, ``file:///path``, ``memory://name``, a registered scheme, or a store itself.

    Nothing is created or contacted by this.
    """
    if isinstance(where, Store):
        return where
    text = os.fspath(where)
    if not text:
        raise UsageError("a run root needs a name", kind="bad-url", hint="pass a directory, say runs/cartpole", url=text)
    found = _SCHEME.match(text)
    if found is None:
        return _local(os.path.expanduser(text), clock)
    opener = _OPENERS.get(found[1].lower()) or _registered(found[1].lower())
    if opener is None:
        raise _unknown(found[1].lower(), text)
    return opener(text, clock)


def redirected(where: Where, clock: Clock, *, only_if_there: bool = False) -> Where:
    """Return where a run root is to be, which a program names as ``where``: `REDIRECT` in the environment moves all of them.

    Each gets a directory of its own there, named after what the program calls it (relative to the working directory where it
    lies within it), so that the same program finds the same one again. Stores that are no directories move, too: whoever
    sets this wants a run that outlives the process and touches nothing else. With ``only_if_there`` a root which was not yet
    saved to stays where it is: a program may read other runs. Raises `UsageError` (kind ``bad-root``) for a URL in the variable.
    """
    into = os.environ.get(REDIRECT)
    named = where.url if isinstance(where, Store) else os.fspath(where)
    if not into or not named:
        return where
    if _SCHEME.match(into):
        # Taken for a path it would be a directory called `s3:`, here.
        hint = f"name a directory, say {REDIRECT}=/scratch/trial"
        raise UsageError(f"{REDIRECT} is a directory, and no URL", kind="bad-root", hint=hint, **{REDIRECT: into})
    into = os.path.abspath(os.path.expanduser(into))
    if os.path.dirname(os.path.abspath(named)) == into:
        return where  # it was moved already
    path = os.path.join(into, directory_of(name_from(named, os.getcwd())))
    return where if only_if_there and not os.path.isdir(path) else _local(path, clock)


def directory_of(named: str) -> str:
    """Return the name of the directory in which the root ``named`` so is put.

    >>> directory_of("runs/ppo"), original_of(directory_of("runs/ppo"))
    ('runs%2Fppo', 'runs/ppo')
    """
    from urllib.parse import quote  # nor these: looking at a run needs neither

    name = quote(named, safe="").replace(".", "%2E")  # and no name is . or ..
    if len(name) <= _LONGEST_NAME:
        return name
    from hashlib import sha256

    return f"{name[-_LONGEST_NAME:]}-{sha256(named.encode()).hexdigest()[:16]}"


def original_of(directory: str) -> str:
    """Return what a program called the root in this directory; of a long name its end."""
    from urllib.parse import unquote

    return unquote(directory)


def name_from(where: str, here: str) -> str:
    """Return what a program that works in the directory ``here`` calls a root: relative to it where it lies within it."""
    if _SCHEME.match(where):
        return where
    path = os.path.normpath(os.path.join(here, os.path.expanduser(where)))
    return os.path.relpath(path, here) if f"{path}/".startswith(f"{here}/") else path


def _local(path: str, clock: Clock) -> Store:
    from milepost.store.local import LocalStore

    return LocalStore(path, clock)


def _open_file(url: str, clock: Clock) -> Store:
    from urllib.parse import unquote, urlsplit  # nor this

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise UsageError(
            "not a file URL of this machine", kind="bad-url", hint="write file:///absolute/path, or just the path", url=url
        )
    return _local(unquote(parts.path), clock)


def _open_memory(url: str, clock: Clock) -> Store:  # noqa: ARG001
    from milepost.store.memory import MemoryStore

    return MemoryStore(url.partition("://")[2])


_OPENERS: dict[str, Callable[[str, Clock], Store]] = {"file": _open_file, "memory": _open_memory}


def _registered(scheme: str) -> Callable[[str, Clock], Store] | None:
    for point in _entry_points():
        if point.name == scheme:
            opener: Callable[[str, Clock], Store] = point.load()
            return opener
    return None


def _entry_points() -> Iterable[EntryPoint]:
    # Not at the top: it takes a tenth of the time of a whole `milepost ls`, and a path needs none of it.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def _unknown(scheme: str, url: str) -> UsageError:
    if scheme in _LATER:
        return UsageError(
            "object stores come in a later release",
            kind="no-object-stores",
            hint="use a directory on a local disk or a shared file system today",
            url=url,
        )
    known = sorted([*_OPENERS, *(point.name for point in _entry_points())])
    return UsageError(
        "no store is known for this kind of URL", kind="unknown-scheme", hint=f"known: a path, {', '.join(known)}", url=url
    )
