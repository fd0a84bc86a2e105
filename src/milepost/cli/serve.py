"""Be the checkpoint service of a run (``serve``), until somebody says that it is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from milepost.cli.options import Size, Time
from milepost.cli.run import json_option, log_option, open_what_is_closed
from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.supervise.journal import Journal
from milepost.supervise.printing import Console

_COUNT = click.IntRange(1)
_FILE = click.Path(dir_okay=False)
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--memory", "memory_bytes"), {"type": Size(), "help": "Of versions in memory. [default: 1/4 of free shared memory]"}),
    (("--memory-keep", "memory_keep_versions"), {"type": _COUNT, "default": 1, "help": "So many of the newest stay in memory."}),
    (("--disk", "disk_path"), {"type": click.Path(file_okay=False), "help": "Store versions here. [default: ROOT/service]"}),
    (("--disk-keep", "disk_keep_versions"), {"type": _COUNT, "default": 5, "help": "So many of the newest stay on disk."}),
    (("--transport",), {"default": "auto", "help": "How bytes move: shm, files, store, bulk, grpc, rdma."}),
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
@log_option
@json_option
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def serve(root: str, log: Path | None, as_json: bool, bind: str, no_token: bool, **given: Any) -> int:
    """Say which weights are current, and hand them out: milepost serve runs/ppo

    Answers a trainer that commits weights and samplers that fetch them, until SIGTERM or Ctrl-C: then it takes nothing new, and
    ends with 0. What it knows lies in ROOT/service; versions in memory outlive it, and are taken up again by the next start.

    Exits with 11 if another serves this root, with 2 for a setting that cannot be.
    """
    open_what_is_closed()
    from milepost.service.settings import ServiceSettings

    host, port = _address(bind)
    threshold = _threshold(given.pop("incremental_threshold"))
    token = None if no_token else ""
    settings = ServiceSettings(host=host, port=port, token=token, incremental_threshold=threshold, **given)
    return 0


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
