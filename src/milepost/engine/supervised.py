"""Leave word in the folder of a supervised attempt (``MILEPOST_SUPERVISED``): small records, visible at once or not at all."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

import msgspec

from milepost.store.posix import Posix

VARIABLE = "MILEPOST_SUPERVISED"

log = logging.getLogger("milepost")


def folder() -> str | None:
    """Return the folder of this attempt, or None where nobody supervises."""
    return os.environ.get(VARIABLE) or None


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
