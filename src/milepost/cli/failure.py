"""End every command in one of three ways: with its data, or with an error in three lines, or with the same error as JSON.

The three lines are what happened, the facts, and a hint that names the next command. A traceback is for ``-v``.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass

import click

from milepost.cli.text import plain
from milepost.errors import MilepostError, MismatchError

SCHEMA_VERSION = 1
"""Of every JSON document printed here. Fields are added, never renamed; then this number stays."""

INTERRUPTED = 130

MISSED = 17
NOT_EXACT, NOT_DETERMINISTIC, NOTHING_PROVEN, FAILED = 20, 21, 22, 23
"""What the verbs that try something out exit with: `drill`, `selftest`, `doctor env`."""

_FULL_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@dataclass(frozen=True, slots=True)
class Failure:
    """Hold what is said about one failed command."""

    code: int
    kind: str
    message: str
    facts: tuple[tuple[str, str], ...] = ()
    differences: tuple[str, ...] = ()
    hint: str = ""


def run(command: Callable[[], object], *, as_json: bool, verbose: bool) -> int:
    """Run ``command`` and return the exit code: its own if it returned one, else 0; a failure is printed on stderr."""
    try:
        result = command()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last frame: whatever it is, it leaves as a message and a code
        if verbose:
            import traceback  # not at the top: no command that succeeds should pay for it

            click.echo(traceback.format_exc(), err=True)
        failure = _failure_of(error)
        _print(failure, as_json)
        return failure.code
    return result if isinstance(result, int) else 0


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, MilepostError):
        return _of_milepost(error)
    if isinstance(error, click.Abort):
        return Failure(INTERRUPTED, "interrupted", "interrupted")
    if isinstance(error, click.ClickException):
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "milepost"
        return Failure(2, "usage", error.format_message(), hint=f"{path} --help")
    if isinstance(error, OSError) and error.errno in _FULL_OUTPUT and error.filename is None:
        # Of a store it would be a StoreError. The verb has done what it does; only its words found no room.
        hint = "the verb itself has ended; milepost ls shows what it left"
        return Failure(1, "output", f"the output could not be written: {error.strerror}", hint=hint)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        hint = "give it more (ulimit -v, the container's limit), and run it again"
        return Failure(1, "memory", "there is not enough memory for this", hint=hint)
    return Failure(
        1,
        "internal",
        f"{type(error).__name__}: {error}",
        hint="this is a bug in milepost: run it again with -v and report the traceback",
    )


def _of_milepost(error: MilepostError) -> Failure:
    facts = tuple((name, str(value)) for name, value in error.facts.items() if value is not None)
    differences = tuple(str(difference) for difference in error.differences) if isinstance(error, MismatchError) else ()
    return Failure(error.exit_code, error.kind, error.message, facts, differences, error.hint)


def _print(failure: Failure, as_json: bool) -> None:
    for line in [_json(failure)] if as_json else _lines(failure):
        click.echo(line, err=True)


def _lines(failure: Failure) -> list[str]:
    what, *more = failure.message.splitlines() or [failure.kind]
    lines = [f"error: {plain(what)}", *(f"  {plain(line.strip())}" for line in more)]
    if failure.facts:
        lines.append("  " + "  ".join(f"{plain(name)}: {plain(value)}" for name, value in failure.facts))
    lines.extend(f"  {plain(difference)}" for difference in failure.differences)
    if failure.hint:
        lines.append(f"hint: {plain(failure.hint)}")
    return lines


def _json(failure: Failure) -> str:
    document = {
        "message_type": "exit_error",
        "schema_version": SCHEMA_VERSION,
        "code": failure.code,
        "kind": failure.kind,
        "message": failure.message,
        "facts": dict(failure.facts),
        "differences": list(failure.differences),
        "hint": failure.hint,
    }
    return json.dumps(document)
