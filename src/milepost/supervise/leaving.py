"""End this process from a thread beside the one that trains and cannot be reached: all that it had to save is durable."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

_PATIENCE_S = 2.0


def end_process(exit_code: int) -> NoReturn:
    """End it with ``exit_code``, after what Python and `logging` still hold is written out, and its workers are told to end."""
    try:
        _within(_end_workers)
        _within(_write_out)
    finally:
        os._exit(exit_code)


def _within(work: Callable[[], None]) -> None:
    """Do it in another thread, and do not wait for it for long: the thread that trains may hold what it needs."""
    other = threading.Thread(target=work, name="milepost-leave", daemon=True)
    other.start()
    other.join(_PATIENCE_S)


def _end_workers() -> None:
    # As `multiprocessing` does it when a process ends in the ordinary way: nobody else will.
    processes = sys.modules.get("multiprocessing.process")
    for child in list(processes.active_children()) if processes is not None else ():
        if child.daemon:
            child.terminate()


def _write_out() -> None:
    for each in [*logging.root.handlers, *logging.getLogger("milepost").handlers, sys.stdout, sys.stderr]:
        try:
            each.flush()
        except (OSError, ValueError, AttributeError):  # closed, or none: what cannot be written has nowhere to be told either
            continue
