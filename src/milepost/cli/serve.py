"""Be the checkpoint service of a run (``serve``), until somebody says that it is enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.options import Size, Time, need_service
from milepost.cli.run import log_option, open_what_is_closed
from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.supervise.journal import Journal
from milepost.supervise.printing import Console

if TYPE_CHECKING:
    from milepost.service.settings import ServiceSettings

_COUNT = click.IntRange(1)
_FILE = click.Path(dir_okay=False)
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--memory", "memory_bytes"), {"type": Size(), "help": "Memory for versions. [default: 1/4 of what /dev/shm has free]"}),
    (("--memory-keep", "memory_keep_versions"), {"type": _COUNT, "default": 1, "help": "So many of the newest stay in memory."}),
    (("--disk", "disk_path"), {"type": click.Path(file_okay=False), "help": "Store versions here. [default: ROOT/service]"}),
    (
        ("--journal", "journal_path"),
        {
            "type": click.Path(file_okay=False),
            "help": "Keep the journal here, on a disk of this machine, where ROOT is on a network.",
        },
    ),
    (("--disk-keep", "disk_keep_versions"), {"type": _COUNT, "default": 5, "help": "So many of the newest stay on disk."}),
    (("--transport",), {"default": "auto", "help": "Offer only this way for bytes: shm, files, store, bulk, rdma; grpc always."}),
    (("--incremental/--no-incremental",), {"default": True, "help": "Send what changed, where that is less."}),
    (("--incremental-threshold",), {"default": "auto", "metavar": "FRACTION", "help": "Up to what is changed, like 0.3."}),
    (("--link-speed", "link_bytes_s"), {"type": Size(), "default": "120M", "help": "Bytes a second between machines."}),
    (
        ("--commit-timeout", "commit_timeout_s"),
        {"type": Time(), "default": "120s", "help": "Wait so long for a commit's next part."},
    ),
    (
        ("--fetch-timeout", "fetch_timeout_s"),
        {"type": Time(zero=True), "default": "60s", "help": "A fetch waits so long at most."},
    ),
    (("--heartbeat", "heartbeat_s"), {"type": Time(), "default": "5s", "help": "Components say so often that they are there."}),
    (("--lease", "lease_s"), {"type": Time(), "default": "60s", "help": "Keep so long what a silent component reads."}),
    (("--retry", "retry_s"), {"type": Time(), "default": "5s", "help": "Try again after so long what the disk refused."}),
    (("--bind",), {"metavar": "HOST[:PORT]", "default": "127.0.0.1", "help": "Listen here; the port stays over restarts."}),
    (("--bulk-port",), {"type": click.IntRange(0, 65535), "default": 0, "help": "The port for bytes. 0: any."}),
    (("--tls-cert",), {"type": _FILE, "help": "Encrypt: PEM certificates."}),
    (("--tls-key",), {"type": _FILE, "help": "Its PEM key."}),
    (("--tls-ca",), {"type": _FILE, "help": "Take only clients whose certificate this one has signed."}),
    (("--no-token",), {"is_flag": True, "help": "Answer whoever connects."}),
    (("--insecure",), {"is_flag": True, "help": "Listen beyond this machine without TLS, or without a token."}),
    (("--max-message", "max_message_bytes"), {"type": Size(), "default": "16M", "help": "The largest message."}),
    (("--max-calls",), {"type": _COUNT, "default": 4096, "help": "So many calls may be open at once."}),
)


def _settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for names, how in reversed(_OPTIONS):
        shown = "default" in how
        function = click.option(*names, show_default=shown, **how)(function)
    return function


@click.command(short_help="Say which weights are current, and hand them out.")
@click.argument("root", type=click.Path(file_okay=False))
@_settings_options
@click.option("--restore", is_flag=True, help="Go back to the newest copy of a damaged journal.")
@log_option
@click.option("--json", "as_json", is_flag=True, help="Say what happens in JSON, a line each.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def serve(root: str, restore: bool, log: Path | None, as_json: bool, bind: str, no_token: bool, **given: Any) -> int:
    """Say which weights are current, and hand them out: milepost serve runs/ppo

    Answers a trainer that commits weights and samplers that fetch them, until SIGTERM or Ctrl-C: then it takes nothing new, and
    ends with 0. What it knows lies in ROOT/service; versions in memory outlive it, and are taken up again by the next start, or
    given back by unload.

    Exits with 11 if another serves this root, or has taken it over; with 2 for a setting that cannot be.
    """
    need_service()
    open_what_is_closed()
    settings = _settings(bind, None if no_token else "", given)
    from milepost.cli.serve_words import Telling
    from milepost.service.server.serving import serve as serve_until_told

    clock = SystemClock()
    journal = Journal(Console(), clock, log, as_json=as_json, name="serve")
    telling = Telling(journal, clock, root)
    try:
        with _logged(journal):
            serve_until_told(root, settings, ready=telling.begun, heard=telling, restored=restore)
            telling.ended()
    finally:
        journal.close()
    return 0


def _settings(bind: str, token: str | None, given: dict[str, Any]) -> ServiceSettings:
    from milepost.service.settings import ServiceSettings

    host, port = _address(bind)
    given["incremental_threshold"] = _threshold(given["incremental_threshold"])
    try:
        return ServiceSettings(host=host, port=port, token=token, **given)
    except UsageError as error:
        raise UsageError(error.message, kind=error.kind, hint=_in_options(error), **error.facts) from error


def _in_options(error: UsageError) -> str:
    """Return what a setting has to be in the words of whoever has given it."""
    if error.kind == "insecure":
        return "give --tls-cert and --tls-key, and leave the token on; or say --insecure where the network is trusted"
    flags = {names[-1]: names[0].partition("/")[0] for names, _ in _OPTIONS if len(names) > 1}
    flags |= {f"tls_{each}": f"--tls-{each}" for each in ("cert", "key", "ca")}
    hint = error.hint
    for name, flag in flags.items():
        hint = hint.replace(name, flag)
    return hint


class _Told(logging.Handler):
    """Pass on what is logged."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.INFO)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self._journal("log", f"{level}: {record.getMessage()}", level=level)


@contextmanager
def _logged(journal: Journal) -> Iterator[None]:
    logger, handler = logging.getLogger("milepost"), _Told(journal)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _address(given: str) -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]``; an IPv6 address stands in brackets where a port follows."""
    host, colon, port = given.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = given, "0"
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
        hint = "--bind 127.0.0.1, --bind 0.0.0.0:7000 or --bind [::1]:7000"
        raise UsageError("this is not an address to listen at", kind="bad-setting", hint=hint, bind=given)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _threshold(given: str) -> Any:
    try:
        return given if given == "auto" else float(given)
    except ValueError as error:
        hint = "--incremental-threshold auto, or a fraction like 0.3"
        raise UsageError("this is no fraction", kind="bad-setting", hint=hint, incremental_threshold=given) from error
