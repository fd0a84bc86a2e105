"""Read what torchrun says of its ranks: it ends with 1 whatever a rank died of, and tells it in a file and in its last words."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from milepost.engine.supervised import read_left
from milepost.supervise.failure_record import FailureRecord, read_failures

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun, and any script under its ``record``, writes down the first failure."""
NAME = "elastic.json"
"""The file of an attempt's folder that `milepost run` names there, where the user has not named another."""

_MOST_BYTES = 1 << 20
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):\n(?:.*\n){0,6}?\s*exitcode\s*: (-?\d{1,5}) ")
_GOT_SIGNAL = re.compile(r"^(?:[\w.]{1,80}\.)?SignalException: Process \d{1,9} got signal: (\d{1,3})$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"\n]{1,1000})", line (\d{1,9}), in (.{1,200})$', re.MULTILINE)
_NAMED = re.compile(r"\A((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: |\Z)")


def error_file(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return what has torchrun write down the first failure in an attempt's folder, unless the user wants it elsewhere."""
    given = environment.get(VARIABLE, "")
    return {} if given and os.path.basename(given) != NAME else {VARIABLE: str(folder / NAME)}


def exit_of_the_first(text: str) -> int | None:
    """Return the exit code of the rank that failed first, negative for a signal; None if torchrun did not say any."""
    if found := _ROOT_CAUSE.search(text):
        return int(found[1])
    return -int(found[1]) if (found := _GOT_SIGNAL.search(text)) else None


def first_failure(folder: str | os.PathLike[str]) -> FailureRecord | None:
    """Return what ended an attempt, of all that its processes have written down in its folder; None if nothing is.

    Where one process fails, those that waited for it fail after it: the first by time is the cause.
    """
    recorded = read_failures(folder)
    if recorded:
        return recorded[-1]
    try:
        return failure_in(read_left(Path(folder) / NAME, _MOST_BYTES))
    except OSError:
        return None


def failure_in(data: bytes) -> FailureRecord | None:
    """Return what an error file says; None if it is none, or tells of a signal only, which the exit says better."""
    try:
        message = json.loads(data)["message"]
        words, extra = str(message["message"]), message["extraInfo"]
        stack, at_s = str(extra["py_callstack"]), int(extra["timestamp"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    named = _NAMED.match(words)
    if named and named[1].rpartition(".")[2] == "SignalException":
        return None
    frames = [f"{os.path.basename(file)}:{name}:{line}" for file, line, name in _FRAME.findall(stack)]
    digest = hashlib.sha256("\n".join([named[1] if named else "", *frames]).encode(errors="backslashreplace"))
    return FailureRecord(
        pid=0,
        at_ns=at_s * 1_000_000_000,
        type=named[1] if named else "Exception",
        message=words[named.end() :] if named else words,
        trace=digest.hexdigest()[:16],
        frames=stack[-4000:],
    )
