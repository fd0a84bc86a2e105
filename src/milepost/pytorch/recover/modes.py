"""Say what a recover mode means: its aliases, and what YAML, OmegaConf and environment variables make of a bare ``on``. A5"""

from __future__ import annotations

from typing import Literal, TypeAlias

from milepost.errors import UsageError

Mode: TypeAlias = Literal["on", "off"]

_MEANINGS: dict[str, Mode] = {
    "on": "on",
    "auto": "on",
    "true": "on",
    "off": "off",
    "disabled": "off",
    "false": "off",
}
_OLD = ("fault", "resume")


def mode_of(given: object) -> Mode:
    """Return ``on`` (resume if there is a checkpoint, and save) or ``off`` (neither). Raises `UsageError`.

    YAML 1.1 reads a bare ``on`` as True, and a configuration whose field is text makes "True" of that.

    >>> mode_of("auto"), mode_of(True), mode_of("disabled"), mode_of("False")
    ('on', 'on', 'off', 'off')
    """
    if isinstance(given, bool):
        return "on" if given else "off"
    text = given.strip().lower() if isinstance(given, str) else ""
    if text in _OLD:
        raise UsageError(
            "this recover mode is one of older versions of AReaL",
            kind="old-mode",
            hint='mode="on" resumes whenever there is a checkpoint; starting again after a failure is what `milepost run` does',
            mode=given,
        )
    if text not in _MEANINGS:
        raise UsageError(
            "no such recover mode",
            kind="bad-mode",
            hint='mode="on" (or "auto") saves and resumes, mode="off" (or "disabled") does neither',
            mode=given,
            type=type(given).__name__,
        )
    return _MEANINGS[text]
