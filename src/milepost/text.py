"""Make any text safe to print."""

from __future__ import annotations


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
