"""Refuse a call so that its client knows why: a status, and behind it what was refused, and what to do next."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from milepost.service import wire
from milepost.service.core.events import Refused

_CODES = {
    "bad-token": grpc.StatusCode.UNAUTHENTICATED,
    "bad-message": grpc.StatusCode.INVALID_ARGUMENT,
    "bad-shards": grpc.StatusCode.INVALID_ARGUMENT,
    "no-version": grpc.StatusCode.INVALID_ARGUMENT,
    "not-announced": grpc.StatusCode.INVALID_ARGUMENT,
    "unknown-version": grpc.StatusCode.NOT_FOUND,
    "unknown-commit": grpc.StatusCode.NOT_FOUND,
    "no-such-blob": grpc.StatusCode.NOT_FOUND,
    "gone": grpc.StatusCode.NOT_FOUND,
    "damaged-shard": grpc.StatusCode.DATA_LOSS,
    "key-reused": grpc.StatusCode.ALREADY_EXISTS,
    "superseded": grpc.StatusCode.ABORTED,
    "commit-timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "not-yet": grpc.StatusCode.DEADLINE_EXCEEDED,
    "not-written": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not-durable": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "disk-full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too-many": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ending": grpc.StatusCode.UNAVAILABLE,
    "internal": grpc.StatusCode.INTERNAL,
}
"""The status of each kind, for those who know only statuses; all others are a failed precondition."""

_BAD_TOKEN = Refused(
    "bad-token",
    "the token is not the one of this service",
    "it lies in service/token of the run root; give it as token=, or connect to the root",
)


class Refusal(Exception):
    """Carry a refusal to where the call is ended."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


async def refuse(context: grpc.aio.ServicerContext[Any, Any], refused: Refused) -> NoReturn:
    """End a call with a refusal."""
    code = _CODES.get(refused.kind, grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(code, _one_line(refused), ((wire.REFUSED, wire.pack_refused(refused)),))
    raise AssertionError("abort returned")


def _one_line(refused: Refused) -> str:
    return f"{refused.kind}: {refused.message}"[:512]


class TokenCheck(grpc.aio.ServerInterceptor):
    """Let nobody in who does not know the token, before anything of the call is looked at."""

    def __init__(self, token: str | None, refused: Callable[[Refused], None]) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        if self._expected is None or self._knows(handler_call_details.invocation_metadata):
            return await continuation(handler_call_details)
        self._refused(_BAD_TOKEN)
        return grpc.stream_stream_rpc_method_handler(_shut)

    def _knows(self, metadata: Any) -> bool:
        given = [value for name, value in metadata or () if name == "authorization"]
        said = given[0] if len(given) == 1 else ""
        said_bytes = said if isinstance(said, bytes) else said.encode("utf-8", "replace")
        return hmac.compare_digest(said_bytes, self._expected or b"")


async def _shut(_: Any, context: Any) -> None:
    # Of all four kinds of call this one needs nothing of the caller before it can be ended.
    await refuse(context, _BAD_TOKEN)
