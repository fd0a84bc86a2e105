"""Ask a service as an operator does: how it stands, to go back, to hold no more. Not a component: nobody's place is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from milepost.errors import NotFoundError, ServiceError, StoreError, UsageError
from milepost.service import wire
from milepost.service.core.events import Caller
from milepost.service.endpoint import read_endpoint, read_token
from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsStub
from milepost.service.standing import Standing
from milepost.service.standing_wire import standing_of

WHERE, TOKEN, CA = "MILEPOST_SERVICE", "MILEPOST_SERVICE_TOKEN", "MILEPOST_SERVICE_CA"
_ANSWERS_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Say where a service is, and how to speak to it."""

    where: str
    """As it was named: a run root, or an address."""
    address: str
    token: str | None
    ca: bytes | None = None
    """PEM certificates by which the service's own is known; None: it speaks without TLS."""
    root: str | None = None
    """The run root, if it was named by one."""


def reach_of(where: str | None = None, *, token_file: str | None = None, ca_file: str | None = None) -> Reach:
    """Return where a service is that is named by a run root or by ``host:port``; None: by the environment.

    Raises `UsageError` (kind ``no-service-named``), `NotFoundError` (``no-service``) for a root in which none has ever begun.
    """
    named = where or os.environ.get(WHERE)
    if not named:
        hint = f"give a run root or HOST:PORT, or set {WHERE}"
        raise UsageError("it was not said which service", kind="no-service-named", hint=hint)
    token = _file(token_file).strip() if token_file else os.environ.get(TOKEN)
    ca_path = ca_file or os.environ.get(CA)
    ca = _file(ca_path).encode() if ca_path else None
    if is_address(named):
        return Reach(named, named, token, ca)
    if not os.path.isdir(named):
        hint = "give a run root that is there, or HOST:PORT"
        raise NotFoundError("there is no such run root", kind="no-such-root", hint=hint, root=named)
    return Reach(named, read_endpoint(named).address, token or read_token(named), ca, named)


def is_address(named: str) -> bool:
    """Say whether this is ``host:port``, and no directory."""
    host, colon, port = named.rpartition(":")
    return bool(colon and host) and port.isascii() and port.isdigit() and "/" not in host and not os.path.isdir(named)


class Asking:
    """Be a connection. Raises what the service refuses as the error of the house that it is; `ServiceError` with kind
    ``unreachable`` where nobody listens, ``no-answer`` where nobody answers in time."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        options = [
            ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        if reach.ca is None:
            self._channel = grpc.insecure_channel(reach.address, options)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificates=reach.ca)
            self._channel = grpc.secure_channel(reach.address, credentials, options)
        self._stub = CheckpointsStub(self._channel)

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._channel.close()

    def standing(self) -> Standing:
        """Return how the service stands."""
        return standing_of(self._asked(self._stub.Status, pb.StatusRequest()), self._reach.address)

    def roll_back(self, number: int, reason: str) -> None:
        """Make an older version live again. Said again, it is done once."""
        self._asked(self._stub.RollBack, pb.RollBackRequest(number=number, reason=reason))

    def resume(self, caller: Caller) -> None:
        """Let fetches through that a trainer holds, in its name."""
        self._asked(self._stub.Resume, pb.ResumeRequest(caller=wire.pack_caller(caller)))

    def _asked(self, call: Callable[..., Any], request: Any) -> Any:
        metadata = [("authorization", f"Bearer {self._reach.token}")] if self._reach.token else []
        try:
            return call(request, timeout=_ANSWERS_WITHIN_S, metadata=metadata)
        except grpc.RpcError as error:
            raise _error_of(error, self._reach.address) from error


def _error_of(error: Any, address: str) -> Exception:
    for name, value in error.trailing_metadata() or ():
        if name == wire.REFUSED:
            return wire.error_of(wire.unpack_refused(value))
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        hint = "look at the log of its process; to kill it is safe: milepost serve ROOT goes on where it was"
        return ServiceError("the service does not answer", kind="no-answer", hint=hint, address=address)
    hint = "milepost serve ROOT starts it; if it runs, check the address, the network, and TLS on both sides"
    return ServiceError(
        "the service cannot be reached",
        kind="unreachable",
        hint=hint,
        address=address,
        cause=f"{error.code().name}: {error.details()}",
    )


def _file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            "a file that was named cannot be read",
            kind="unreadable",
            retryable=False,
            hint="check the path",
            path=path,
            cause=error,
        ) from error
