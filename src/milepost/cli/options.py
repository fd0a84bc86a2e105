"""Give every verb the same frame: the run root first, ``--json``, ``-v``; and open the store it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from milepost.clock import SystemClock
from milepost.publish.signed import open_root
from milepost.store.base import Store

_KEY_FILE = f"{__name__}.key_file"


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
