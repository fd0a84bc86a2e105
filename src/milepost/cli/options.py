"""Give every verb the same frame: the run root first, ``--json``, ``-v``; and open the store it names."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import click

from milepost.clock import SystemClock
from milepost.errors import MissingExtraError, UsageError
from milepost.lifecycle.amounts import bytes_of, seconds_of
from milepost.publish.signed import open_root
from milepost.store.base import Store

_KEY_FILE = f"{__name__}.key_file"


class Time(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no arguments for it
    """Read a length of time in seconds (``90s``, ``15m``), or one of the ``words`` that may stand for it."""

    name = "time"

    def __init__(self, *words: str, zero: bool = False) -> None:
        """``zero``: no time at all is one, too."""
        self._words, self._zero = words, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return the seconds, or the word. What is neither names its option."""
        if value in self._words or not isinstance(value, str):
            found: float | str = value
            return found
        try:
            seconds = seconds_of(value)
        except UsageError:
            self.fail(f"{value!r} is not a length of time ({', '.join(('like 90s, 15m, 12h or 7d', *self._words))})", param, ctx)
        if not (seconds or self._zero):
            self.fail("it has to be longer than no time at all", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]
    """Read a number of bytes: ``500M``, ``8GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if not isinstance(value, str):
            return int(value)
        try:
            return bytes_of(value)
        except UsageError:
            self.fail(f"{value!r} is not a size (like 500K, 50M or 8GiB)", param, ctx)


def need_service() -> None:
    """Raise `MissingExtraError` where what the checkpoint service speaks with is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would tell of each handshake that fails, in words of its own
    for module in ("grpc", "google.protobuf"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError("service", module) from error


def verb(function: Callable[..., int | None]) -> click.Command:
    """Make ``function`` a command of its own name. Its result is the exit code; it gets ``root`` and ``as_json``."""
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text."),
        click.option(
            "--key-file",
            type=click.Path(),
            expose_value=False,
            callback=_note_key_file,
            help="Trust only what is signed with this key, and sign what is written. Else MILEPOST_KEY_FILE, MILEPOST_KEY.",
        ),
        click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure."),
    ]
    for option in options:
        function = option(function)
    # Arguments are listed as they are applied: the last one applied comes first on the command line.
    return click.command()(click.argument("root", type=click.Path(file_okay=False, readable=False))(function))


def _note_key_file(context: click.Context, _option: click.Parameter, path: str | None) -> None:
    context.meta[_KEY_FILE] = path


def open_store(root: str) -> Store:
    """Return the store that ``root`` names: a path or a url. With a key it refuses what is not signed."""
    context = click.get_current_context(silent=True)
    return open_root(root, SystemClock(), context.meta.get(_KEY_FILE) if context else None)
