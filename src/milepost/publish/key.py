"""Find the key that says who may have written a run: from a file, or from the environment. It is never told to anyone."""

from __future__ import annotations

import os
import stat

from milepost.errors import UsageError

FILE_VARIABLE = "MILEPOST_KEY_FILE"
KEY_VARIABLE = "MILEPOST_KEY"
LEAST_BYTES = 16
_MOST_BYTES = 64 << 10


def find_key(key_file: str | os.PathLike[str] | None = None) -> bytes | None:
    """Return the key in ``key_file``, or that which the environment names (``MILEPOST_KEY_FILE``, ``MILEPOST_KEY``), or None.

    A key is bytes as they stand: hexadecimal text is not decoded. Of a file one newline at the end is left out, so that
    ``openssl rand -hex 32 > key`` and ``MILEPOST_KEY=$(cat key)`` are the same key.
    """
    named, given = os.environ.get(FILE_VARIABLE), os.environ.get(KEY_VARIABLE)
    if key_file is not None:
        return _checked(_read(os.fspath(key_file)), os.fspath(key_file))
    if named is not None and given is not None:
        raise UsageError(
            f"{FILE_VARIABLE} and {KEY_VARIABLE} are both set", kind="bad-key", hint=f"unset one of them, best {KEY_VARIABLE}"
        )
    if named is not None:
        return _checked(_read(named), named)
    return None if given is None else _checked(os.fsencode(given), KEY_VARIABLE)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IROTH | stat.S_IWOTH):
                _warn(path)
            key = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "the key file cannot be read",
            kind="no-key",
            hint="check the path; without a key a signed run can be read, but not be trusted or written to",
            path=path,
            cause=error.strerror,
        ) from error
    return key.removesuffix(b"\n").removesuffix(b"\r")


def _warn(path: str) -> None:
    import logging  # not at the top: looking at a run does without, as long as there is nothing to say

    logging.getLogger("milepost").warning("every user of this machine can read or change the key file %s; chmod 600 it", path)


def _checked(key: bytes, source: str) -> bytes:
    """Return ``key`` if it is one. The error names its length and where it is from, and nothing that is in it."""
    if not LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise UsageError(
            f"a key has {LEAST_BYTES} to {_MOST_BYTES:,} bytes",
            kind="bad-key",
            hint=f"openssl rand -hex 32 > KEYFILE; chmod 600 KEYFILE; and pass that: key_file=, --key-file or {FILE_VARIABLE}",
            source=source,
            size_bytes=len(key),
        )
    return key
