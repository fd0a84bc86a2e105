"""Write down what a training process died of, where its supervisor looks, and read that again."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from milepost.clock import Clock
from milepost.engine.redact import redacted
from milepost.engine.supervised import leave_record, read_left
from milepost.errors import MilepostError

_MOST_CHARACTERS = 4000
_LAST_FRAMES = 20
_MOST_BYTES = 1 << 20

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Say what an uncaught exception was, and where it came from."""

    pid: int
    at_ns: int
    """When it was written down, by the wall clock: of several processes' the first is the cause of the others."""
    type: str
    """``OSError``, ``torch.OutOfMemoryError``: with its module, where that is not Python's own."""
    message: str
    trace: str
    """A digest of the type and of where each frame was: two equal ones are the same fault in the same place."""
    frames: str = ""
    """The last frames, as Python prints them."""
    step: int = -1
    """The last safe point before it; -1 if there was none."""
    errno: int | None = None
    kind: str = ""
    """Of a `MilepostError`; what follows, too."""
    exit_code: int | None = None
    hint: str = ""


def failure_of(error: BaseException, *, pid: int, at_ns: int, step: int) -> FailureRecord:
    """Return the record of an exception. No secret is in it, as far as one can tell."""
    ours = error if isinstance(error, MilepostError) else None
    number = getattr(error, "errno", None)
    return FailureRecord(
        pid=pid,
        at_ns=at_ns,
        type=_name_of(type(error)),
        message=redacted(_text_of(error))[:_MOST_CHARACTERS],
        trace=trace_of(error),
        frames=redacted("".join(traceback.format_tb(error.__traceback__, limit=-_LAST_FRAMES)))[-_MOST_CHARACTERS:],
        step=step,
        errno=number if isinstance(number, int) else None,
        kind=ours.kind if ours else "",
        exit_code=ours.exit_code if ours else None,
        hint=redacted(ours.hint) if ours else "",
    )


def trace_of(error: BaseException) -> str:
    """Return a digest of the exception's type and of where each of its frames was, and not of what it says.

    Messages hold numbers and addresses that differ each time. Of a file only the last part of its name counts: a job that is
    started again may be unpacked elsewhere.
    """
    digest = hashlib.sha256(_name_of(type(error)).encode())
    for frame in traceback.extract_tb(error.__traceback__):
        digest.update(f"\n{os.path.basename(frame.filename)}:{frame.name}:{frame.lineno}".encode(errors="backslashreplace"))
    return digest.hexdigest()[:16]


class Watch:
    """Write down what ends this process, if that is an exception which nobody catches; then do what was done before."""

    def __init__(self, folder: str, clock: Clock, step: Callable[[], int]) -> None:
        self._folder, self._clock, self._step = folder, clock, step
        self._pid = os.getpid()
        self._before: Hook = sys.excepthook
        self._hook: Hook = self._caught
        sys.excepthook = self._hook

    def _caught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            # A Ctrl-C is no failure. In a forked child it is the child's, which may well be meant to be noticed by nobody.
            if os.getpid() == self._pid and not issubclass(kind, KeyboardInterrupt):
                record = failure_of(error, pid=self._pid, at_ns=self._clock.wall_ns(), step=self._step())
                leave_record(self._folder, f"failure-{self._pid}", record)
        finally:
            self._before(kind, error, trace)

    def end(self) -> None:
        """Leave things as they were, unless somebody has come after us."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._before


def read_failures(folder: str | os.PathLike[str]) -> tuple[FailureRecord, ...]:
    """Return what is recorded in the folder of an attempt, newest first. What cannot be read is passed over.

    The last of them is the cause: where one process fails, those that waited for it fail after it.
    """
    found = [record for path in Path(folder).glob("failure-*.json") if (record := _read(path)) is not None]
    return tuple(sorted(found, key=lambda record: record.at_ns, reverse=True))


def _read(path: Path) -> FailureRecord | None:
    try:
        return msgspec.json.decode(read_left(path, _MOST_BYTES), type=FailureRecord)
    except (OSError, msgspec.DecodeError):
        return None


def _name_of(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - an exception of the user's whose own text fails is still what ended training
        return f"(its text cannot be had: {type(second).__name__})"
