"""Be the connection to a service: one call is one try, over a channel that is made anew where the service listens elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from milepost.errors import MilepostError, ServiceError, StoreError
from milepost.service.client.target import Find, Target, Tls
from milepost.service.proto.service_pb2_grpc import CheckpointsStub
from milepost.service.wire import MAX_MESSAGE_BYTES, REFUSED, error_of, unpack_refused

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A connection of its own, which comes back within a second of the service.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A proxy that the environment names for the web knows nothing of a service on a machine of ours.
    ("grpc.enable_http_proxy", 0),
)
_NEVER = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


class Broken(Exception):
    """Say that a try came to nothing: whether it was done nobody knows. It may be made again."""


class Line:
    """Be a way to call the service, from any thread."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._changing = threading.Lock()
        self._target: Target | None = None
        self._channel: grpc.Channel | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """Return where the service is looked for; empty where nobody has said so yet."""
        return self._target.address if self._target is not None else ""

    def target(self) -> Target:
        """Return where the service is. Raises what `milepost.service.endpoint.read_endpoint` raises."""
        self._open()
        assert self._target is not None
        return self._target

    def stub(self) -> CheckpointsStub:
        """Return what calls are made on."""
        return CheckpointsStub(self._open())

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what each call carries."""
        token = self._target.token if self._target is not None else None
        return (("authorization", f"Bearer {token}"),) if token else ()

    def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """Try once. Raises `Broken`; or the error that the service has refused it with."""
        try:
            stub = self.stub()
            return getattr(stub, method)(request, timeout=timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            raise said(error) from error
        except ValueError as error:  # the channel was closed by another thread, which found the service elsewhere
            raise Broken(str(error)) from error

    def stream(self, method: str, request: Any) -> Any:
        """Begin a call that is answered again and again: a `grpc.Call` to iterate over, see `answers`."""
        try:
            return getattr(self.stub(), method)(request, metadata=self.metadata)
        except ValueError as error:
            raise Broken(str(error)) from error

    def renew(self) -> None:
        """Look again where the service is, and call there from now on. Raises what finding it raises."""
        found = self._find()
        with self._changing:
            if found == self._target or self._closed:
                return  # the channel finds back by itself
            old, self._channel, self._target = self._channel, None, found
        if old is not None:
            old.close()

    def close(self) -> None:
        """Hang up. Calls that are under way end."""
        with self._changing:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> grpc.Channel:
        if self._channel is None and self._target is None:
            found = self._find()
            with self._changing:
                self._target = self._target or found
        with self._changing:
            if self._closed:
                raise ServiceError("this client is closed", kind="closed", hint="connect again")
            if self._channel is None:
                assert self._target is not None
                self._channel = _channel(self._target)
            return self._channel


def answers(call: Any) -> Iterator[Any]:
    """Yield the answers to a call. Raises as `Line.call`."""
    try:
        yield from call
    except grpc.RpcError as error:
        raise said(error) from error


def said(error: grpc.RpcError) -> Exception:
    """Return what a failed call means: a refusal as its error, all else as `Broken`."""
    trailing = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for name, value in trailing or ():
        if name == REFUSED:
            return error_of(unpack_refused(value))
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = error.details() if hasattr(error, "details") else str(error)
    if code in _NEVER:
        hint = "is this the port of a milepost service? milepost status asks it"
        return ServiceError(
            "what answers here is no checkpoint service", kind="no-service", hint=hint, code=code.name, said=details
        )
    return Broken(f"{code.name.lower().replace('_', ' ')}: {details}")


def _channel(target: Target) -> grpc.Channel:
    if target.tls is None:
        return grpc.insecure_channel(target.address, options=_OPTIONS)
    return grpc.secure_channel(target.address, _credentials(target.tls), options=_OPTIONS)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        hint = "tls= names a file in PEM that this process may read"
        raise StoreError("a certificate cannot be read", kind="unreadable", retryable=False, hint=hint, path=path) from error


def is_transient(error: MilepostError) -> bool:
    """Say whether a refusal may be another one, or none, a moment later."""
    return error.kind in ("ending", "too-many", "being-looked-at")
