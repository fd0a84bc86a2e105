"""Say which host this is: with whom memory is shared."""

from __future__ import annotations

import os

HOST = "MILEPOST_HOST"
"""The environment variable that names this host otherwise: two containers that look alike, or a drill."""

SHARED = "/dev/shm"  # noqa: S108 - the memory itself; what is made in it has names of its own

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def host_id() -> str:
    """Return which kernel this is, since which boot, and which ``/dev/shm`` is seen here. Empty: nothing is shared here.

    Two containers on one machine have one kernel, but memory in common only if they see the same mount.
    """
    named = os.environ.get(HOST)
    if named:
        return named
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}-{os.stat(SHARED).st_dev:x}"
    except OSError:  # no Linux, or no such mount: it has the same bytes by other ways
        return ""
