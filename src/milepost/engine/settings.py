"""Refuse settings and counts that cannot work, where they are given and not where they are used."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from milepost.errors import UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.sane import FAR

WriterKind: TypeAlias = Literal["thread", "process", "inline"]


def check_settings(
    when: object, keep: object, on_save_error: str, writer: str, sizes: Mapping[str, object], compress: str
) -> None:
    """Raise `UsageError` (kind ``bad-setting``) for an engine's settings that are of the wrong kind."""
    found: dict[str, object] = {}
    if when is not None and not callable(getattr(when, "due", None)):
        found["when"] = when
    if keep is not None and not isinstance(keep, Keep):
        found["keep"] = keep
    if on_save_error not in ("raise", "warn"):
        found["on_save_error"] = on_save_error
    if writer not in get_args(WriterKind):
        found["writer"] = writer
    found |= {name: size for name, size in sizes.items() if not _is_size(size, or_none=name == "staging_bytes")}
    if compress not in ("auto", "off"):
        found["compress"] = compress
    if found:
        raise UsageError(
            "an engine cannot be made with these settings",
            kind="bad-setting",
            hint='when=every(steps=10_000), keep=Keep(last=5), on_save_error="raise" or "warn", '
            'writer="thread" or "process", staging_bytes=2 << 30 or None, blob_bytes=4 << 30 (bytes), compress="auto" or "off"',
            **found,
        )


def keep_of(keep: Keep | None, default: Keep) -> Keep:
    """Return which generations stay. Raises `UsageError` (kind ``bad-setting``) for what does not say so."""
    if keep is not None and not isinstance(keep, Keep):
        raise UsageError("this does not say which generations stay", kind="bad-setting", hint="keep=Keep(last=5)", keep=keep)
    return keep or default


def _is_size(size: object, *, or_none: bool) -> bool:
    if size is None:
        return or_none
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def whole(name: str, value: int) -> int:
    """Return a count as a plain integer; it may come as NumPy's or torch's.

    Raises `UsageError` (kind ``bad-count``) for what is none, and for one that no reader would believe: a generation with it
    could never be loaded.
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise UsageError(
            "a step or another count is a whole number",
            kind="bad-count",
            hint="pass the framework's own counter, say engine.save(model.num_timesteps)",
            **{name: repr(value)},
        ) from None
    if not -FAR <= count <= FAR:
        raise UsageError(
            "a step or another count is further from 0 than any can be",
            kind="bad-count",
            hint="look at what counts it: in 64 bits there is no such number",
            **{name: f"a number of {count.bit_length():,} bits"},
        )
    return count
