"""Keep the word that callers have to know, where only its owner can read it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from milepost.clock import Clock
from milepost.service.endpoint import TOKEN
from milepost.service.settings import ServiceSettings
from milepost.store.posix import failures_of

_LEAST = 16


def keep_token(directory: str, settings: ServiceSettings, clock: Clock) -> str | None:
    """Return the token of a service, and let it lie in ``directory`` for whoever may read that; None: nothing is asked.

    It stays the same over restarts: clients that were given it elsewhere go on.
    """
    path = Path(directory) / TOKEN
    with failures_of("keep the token", str(path)):
        if settings.token is None:
            path.unlink(missing_ok=True)
            return None
        before = _before(path)
        token = settings.token or before or clock.nonce() + clock.nonce()
        if token == before:
            path.chmod(0o600)  # and not written again: whoever reads it just now would find none
            return token
        # Not through the store: a file that is made there can be read by others until its mode is changed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.truncate()
            file.write(token.encode("ascii"))
        return token


def _before(path: Path) -> str:
    # What a kill in the midst of a write, or a power cut, has left is no token.
    with suppress(FileNotFoundError, UnicodeDecodeError):
        token = path.read_text(encoding="ascii").strip()
        if len(token) >= _LEAST and token.isprintable():
            return token
    return ""
