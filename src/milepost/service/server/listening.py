"""Listen: the control connection, who may call, and what bounds a call."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from milepost.errors import CorruptError, NotFoundError, StoreError, UsageError
from milepost.service.endpoint import ENDPOINT, Endpoint, decode_endpoint
from milepost.service.proto.service_pb2_grpc import add_CheckpointsServicer_to_server
from milepost.service.server.calls import Calls
from milepost.service.server.descriptors import most_connections
from milepost.service.server.refusing import TokenCheck
from milepost.service.settings import ServiceSettings
from milepost.store.base import Store

_KEEPALIVE_MS = 20_000
_SPARE_CALLS = 1024
"""How many more may be open than are admitted: those that are answered at once, also that there are too many."""


def make_server(calls: Calls, token: str | None, settings: ServiceSettings) -> grpc.aio.Server:
    """Return a server of these calls, which does not listen yet."""
    server = grpc.aio.server(
        interceptors=[TokenCheck(token, calls.count)],
        maximum_concurrent_rpcs=settings.max_calls + _SPARE_CALLS,
        options=[
            ("grpc.so_reuseport", 0),  # two servers at one port would share the calls of all
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            ("grpc.max_metadata_size", 16 << 10),
            ("grpc.max_allowed_incoming_connections", most_connections()),
            ("grpc.server_handshake_timeout_ms", _KEEPALIVE_MS),  # for who connects and says nothing
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),  # of a host that has gone without a word the calls end
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    add_CheckpointsServicer_to_server(calls, server)  # type: ignore[no-untyped-call]  # generated
    return server


def bind(server: grpc.aio.Server, settings: ServiceSettings, before: Endpoint | None) -> int:
    """Bind the control port, and return which. That of the service before if it is free, so that clients find this one again.

    Raises `UsageError` (kind ``cannot-listen``) where it is taken, or the address is none of this machine.
    """
    wanted = [settings.port] if settings.port else [*([before.port] if before is not None else []), 0]
    failure: Exception | None = None
    for port in wanted:
        try:
            return _bind(server, settings, f"{literal(settings.host)}:{port}")
        except RuntimeError as error:
            failure = error
    raise UsageError(
        "the service cannot listen at this address",
        kind="cannot-listen",
        hint="choose another port, or 0 for any; the host must be an address of this machine",
        host=settings.host,
        port=settings.port,
    ) from failure


def endpoint_before(store: Store) -> Endpoint | None:
    """Return where the service before has listened; None if there was none, or nobody knows."""
    with suppress(NotFoundError, CorruptError, StoreError):
        return decode_endpoint(store.read(ENDPOINT), ENDPOINT)
    return None


def _bind(server: grpc.aio.Server, settings: ServiceSettings, address: str) -> int:
    if settings.tls_cert is None or settings.tls_key is None:
        return server.add_insecure_port(address)
    authority = None if settings.tls_ca is None else Path(settings.tls_ca).read_bytes()
    pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
    return server.add_secure_port(address, grpc.ssl_server_credentials([pair], authority, authority is not None))


def literal(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def port_of(address: str) -> int:
    """Return the port of an address."""
    return int(address.rpartition(":")[2])
