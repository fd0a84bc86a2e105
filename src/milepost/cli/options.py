"""Give every verb the same frame: the run root first, ``--json``, ``-v``; and open the store it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from milepost.clock import SystemClock
from milepost.store.base import Store
from milepost.store.resolve import open_store as store_at


def verb(function: Callable[..., int | None]) -> click.Command:
    """Make ``function`` a command of its own name. Its result is the exit code; it gets ``root`` and ``as_json``."""
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text."),
        click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure."),
    ]
    for option in options:
        function = option(function)
    # Arguments are listed as they are applied: the last one applied comes first on the command line.
    return click.command()(click.argument("root", type=click.Path(file_okay=False))(function))


def open_store(root: str) -> Store:
    """Return the store that ``root`` names: a path or a url."""
    return store_at(root, SystemClock())
