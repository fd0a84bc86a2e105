"""Keep room in the table of open files: whoever connects, with a token or not, takes none of what the work needs."""

from __future__ import annotations

import resource

_RESERVED = 512
"""For the bulk port, for files that are read and written, and for the journal."""
_LEAST, _MOST = 64, 65_536


def raise_limit() -> None:
    """Let this process have as many files open as it may: 1,024, which is usual, are few where each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many control connections may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(_LEAST, min(soft - _RESERVED, _MOST))
