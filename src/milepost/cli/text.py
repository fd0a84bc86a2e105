"""Turn values into what a person reads at a terminal. No colour, no width of the terminal, no surprises in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from milepost.text import plain

__all__ = ["duration", "number", "plain", "size", "table", "width"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def width(text: str) -> int:
    """Return how many columns ``text`` takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def size(count: int) -> str:
    """Return a number of bytes with three significant digits.

    >>> size(0), size(1536), size(412 * 2**20), size(1023 * 2**10)
    ('0 B', '1.5 KiB', '412 MiB', '1,023 KiB')
    """
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    digits = 1 if unit != "B" and amount < 99.95 else 0
    return f"{amount:,.{digits}f} {unit}".replace(".0 ", " ")


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "file"), counted(2000, "run")
    ('1 file', '2,000 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest fitting unit; a clock that was set back gives a minus sign, not a lie.

    >>> duration(38), duration(250), duration(7300), duration(3 * 86400), duration(-5)
    ('38s', '4m', '2h', '3d', '-5s')
    """
    sign, whole = ("-" if seconds < 0 else ""), int(abs(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * length or (whole >= length and unit != "m"):
            return f"{sign}{whole // length}{unit}"
    return f"{sign}{whole}s"


def number(value: float) -> str:
    """Return a measured number with six significant digits at most.

    >>> number(487.2), number(0.0003), number(1e9), number(float("nan"))
    ('487.2', '0.0003', '1e+09', 'nan')
    """
    return f"{value:.6g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table. Columns named in ``right`` hold numbers.

    Columns without any value are left out, and so is a head without any name.
    """
    shown = [i for i in range(len(head)) if any(row[i] for row in rows)]
    ends = {i for i in shown if head[i] in set(right)}
    cells = [[row[i] for i in shown] for row in (head, *rows)]
    widths = [max(width(row[j]) for row in cells) for j in range(len(shown))]
    lines = [_line(row, widths, [i in ends for i in shown]) for row in cells]
    return lines if any(head) else lines[1:]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, wide, at_right in zip(row, widths, right, strict=True):
        space = " " * (wide - width(cell))
        padded.append(space + cell if at_right else cell + space)
    return "  ".join(padded).rstrip()
