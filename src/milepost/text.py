"""Make any text safe to print, and say what generations and signals are called."""

from __future__ import annotations

import signal


def plain(value: object) -> str:
    r"""Return ``value`` as text that cannot steer a terminal nor begin a line of its own.

    Names of metrics, paths and hosts come from files that anybody may have written: an escape sequence in one would
    rewrite what the terminal shows, a newline would forge a line of the log, a bidi override would turn a name around.

    >>> plain("return\x1b[2J")
    'return\\x1b[2J'
    """
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def name_of(number: int) -> str:
    """Return how a generation is called in every output: ``g000042``."""
    return f"g{number:06d}"


def name_of_signal(number: int) -> str:
    """Return ``SIGTERM`` and the like; a real-time signal has only its number.

    >>> name_of_signal(15), name_of_signal(40)
    ('SIGTERM', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
