"""Ask a service as an operator does: how it stands, to go back, to hold no more. Not a component: nobody's place is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.errors import NotFoundError, ServiceError, StoreError
from milepost.service import wire
from milepost.service.client.line import Broken, Line
from milepost.service.client.target import SERVICE, SERVICE_TOKEN, Find, Tls, finder, is_address
from milepost.service.core.events import Caller
from milepost.service.proto import service_pb2 as pb
from milepost.service.standing import Standing
from milepost.service.standing_wire import standing_of

ANSWERS_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Say where a service is, and how to speak to it."""

    where: str
    """As it was named: a run root, or an address."""
    root: str | None
    """The run root, if it was named by one."""
    find: Find
    token: str | None
    tls: Tls | None


def reach_of(
    where: str | None = None,
    *,
    token_file: str | None = None,
    tls: Tls | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Reach:
    """Return where a service is that is named by a run root or by ``host:port``; None: by the environment.

    Raises `UsageError` (kind ``no-service-named``), `NotFoundError` (kind ``no-such-root``).
    """
    token = _text(token_file) if token_file else environment.get(SERVICE_TOKEN)
    find = finder(where, token, tls, environment)
    named = where or environment[SERVICE]
    if is_address(named):
        return Reach(named, None, find, token, tls)
    if not os.path.isdir(named):
        hint = "give a run root that is there, or HOST:PORT"
        raise NotFoundError("there is no such run root", kind="no-such-root", hint=hint, root=named)
    return Reach(named, named, find, token, tls)


class Asking:
    """Be a connection.

    Raises what the service refuses as the error of the house that it is; `ServiceError` (kind ``unreachable``) where nobody
    answers; what `milepost.service.endpoint.read_endpoint` raises.
    """

    def __init__(self, reach: Reach) -> None:
        self._line = Line(reach.find)
        self._named = reach.root or "ROOT"

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._line.close()

    def standing(self) -> Standing:
        """Return how the service stands."""
        return standing_of(self._asked("Status", pb.StatusRequest()), self._line.address)

    def roll_back(self, number: int, reason: str) -> None:
        """Make an older version live again."""
        self._asked("RollBack", pb.RollBackRequest(number=number, reason=reason))

    def resume(self, caller: Caller) -> None:
        """Let fetches through that a trainer holds back, in its name."""
        self._asked("Resume", pb.ResumeRequest(caller=wire.pack_caller(caller)))

    def _asked(self, method: str, request: Any) -> Any:
        try:
            return self._line.call(method, request, ANSWERS_WITHIN_S)
        except Broken as error:
            raise self._unreachable(error) from error

    def _unreachable(self, why: Broken) -> ServiceError:
        hint = f"milepost serve {self._named} starts it; if it runs, check the address, the network, and TLS on both sides"
        address = self._line.address
        return ServiceError("the service does not answer", kind="unreachable", hint=hint, address=address, cause=why)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            "the token cannot be read", kind="unreadable", retryable=False, hint="check --token-file", path=path, cause=error
        ) from error
