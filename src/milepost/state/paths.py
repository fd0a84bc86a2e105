"""Name places in a tree for people: ``optimizer/state[0]/exp_avg``. Printable text only, whatever the keys are."""

from __future__ import annotations

_LONGEST_KEY = 200


def step(key: object) -> str:
    """Return what a container's path is followed by to name the value at ``key``."""
    if type(key) is str:
        printable = key and len(key) <= _LONGEST_KEY and key.isprintable()
        return f"/{key}" if printable else f"/{_short(ascii(key[:_LONGEST_KEY]))}"
    return f"[{_short(_plain(key))}]"


def _plain(key: object) -> str:
    if type(key) is int and key.bit_length() > 64:
        return hex(key)  # python refuses the decimal text of a huge integer
    if type(key) is tuple:
        return "(" + ", ".join(_plain(part) for part in key) + ")"
    if type(key) is frozenset:
        return f"frozenset of {len(key)}"
    return ascii(key)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_KEY else f"{text[: _LONGEST_KEY - 3]}..."


def type_name(value: object) -> str:
    """Return the full name of the type of ``value``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
