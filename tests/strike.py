"""Raise `KeyboardInterrupt` before one line of a module, as a Ctrl-C may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def before_line(at: int, *files: str) -> Callable[[Any, str, object], Any]:
    """Return what `sys.settrace` takes: it strikes before line ``at`` of what runs of ``files``, counted from 0, once."""
    seen = 0

    def strike(frame: Any, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            seen += 1
            if seen == at + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return strike

    return strike
