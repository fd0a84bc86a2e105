"""Know where the service of a run listens: the file by which it is found, and whether who wrote that still lives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from milepost.encode.digest import seal, unseal
from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.store.base import Store
from milepost.store.process import boot_id, process_start_time

SERVICE = "service"
"""The directory of all that a service keeps, in the root of its run."""
ENDPOINT = "endpoint.json"
TOKEN = "token"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Say where a service listens, and which process it is."""

    run_id: str
    address: str
    """host:port of the control connection, as it was bound. Where to connect to from here: `reach`."""
    term: int
    host: str
    """Whose memory it shares. See `milepost.service.transports.host.host_id`."""
    boot_id: str
    pid: int
    start_time: int
    """With the pid and the boot: which process, for good. See `milepost.store.process.process_start_time`."""
    is_tls: bool = False
    has_token: bool = True
    has_ended: bool = False
    """Whether it has ended in good order."""
    bulk_port: int = 0
    journal: str = ""
    """The path of the journal; empty: it lies beside this file."""
    disk: str = ""
    """In which store versions lie; empty: beside this file. Whoever begins next looks there for both, unless it is told to look
    elsewhere."""
    namespace: str = ""
    """Of process ids: in another one the same pid is another process."""
    machine: str = ""
    """Its name, by which others reach it where it listens at all addresses."""

    @property
    def is_dead(self) -> bool:
        """Say whether that very process is known to have ended; False for one of another machine or container: nobody knows."""
        if self.has_ended:
            return True
        if self.boot_id != boot_id() or self.namespace != namespace():
            return False
        return process_start_time(self.pid) != self.start_time

    @property
    def reach(self) -> str:
        """Return host:port to connect to from here: one that listens at all addresses has none of that name."""
        host, _, port = self.address.rpartition(":")
        if host not in ("0.0.0.0", "[::]"):  # noqa: S104 - compared, not bound
            return self.address
        is_here = self.boot_id == boot_id() and self.namespace == namespace()
        return f"{'localhost' if is_here or not self.machine else self.machine}:{port}"

    @property
    def port(self) -> int:
        """Return the port of the control connection."""
        return int(self.address.rpartition(":")[2])

    def encode(self) -> bytes:
        """Return it as a sealed record."""
        return seal(msgspec.json.encode(self))


_decoder = msgspec.json.Decoder(Endpoint)


def write_endpoint(store: Store, endpoint: Endpoint) -> None:
    """Say where a service listens; readers see what was said before, or this. ``store`` is rooted at the service's directory."""
    store.replace(ENDPOINT, endpoint.encode(), durable=False)


def read_endpoint(root: str | os.PathLike[str]) -> Endpoint:
    """Return where the service of a run root listens, or did.

    Raises `NotFoundError` (kind ``no-service``) where none ever did; `CorruptError` (``damaged-record``) for a damaged file.
    """
    path = Path(root) / SERVICE / ENDPOINT
    try:
        record = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = f"milepost serve {root} begins one"
        raise NotFoundError("no service has begun for this run", kind="no-service", hint=hint, root=root) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return decode_endpoint(record, str(path))


def decode_endpoint(record: bytes, what: str) -> Endpoint:
    """Return what `Endpoint.encode` was given. Raises `CorruptError` (kind ``damaged-record``) for anything else."""
    try:
        return _decoder.decode(unseal(record, what))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "delete it: a service that begins writes it anew"
        raise CorruptError(
            "the record of where the service listens is damaged", kind="damaged-record", hint=hint, what=what
        ) from error


def read_token(root: str | os.PathLike[str]) -> str | None:
    """Return the token of a run's service; None if there is none here."""
    path = Path(root) / SERVICE / TOKEN
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def this_process() -> tuple[str, int, int]:
    """Return boot, pid and start time of this process."""
    return boot_id(), os.getpid(), process_start_time(os.getpid()) or 0


def namespace() -> str:
    """Return in which namespace of process ids this process is; empty where the system does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        "a file of the service cannot be read",
        kind="permission" if isinstance(error, PermissionError) else "unreadable",
        retryable=False,
        hint="run as the user whose service it is",
        path=path,
        cause=error,
    )
