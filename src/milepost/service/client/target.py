"""Find the service: by its run root, by an address, or by what the environment says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from milepost.errors import UsageError
from milepost.service.endpoint import read_endpoint, read_token

SERVICE, SERVICE_TOKEN = "MILEPOST_SERVICE", "MILEPOST_SERVICE_TOKEN"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^/\s:\[\]]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class Tls:
    """Say whom to trust, and who this client is; each is a file in PEM."""

    ca: str | None = None
    """The certificates that sign the service's; None: those that the machine trusts."""
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Say where a service listens, and what it wants to be told."""

    address: str
    token: str | None = None
    tls: Tls | None = None

    @property
    def host(self) -> str:
        """Return the host of the address."""
        return self.address.rpartition(":")[0].strip("[]")


Find = Callable[[], Target]
"""Look where the service is now: one that is started anew may listen elsewhere."""


def finder(
    target: str | os.PathLike[str] | None, token: str | None, tls: Tls | str | bool | None, environment: Mapping[str, str]
) -> Find:
    """Return what finds the service. Raises `UsageError` (kind ``no-service-named``) where nobody has said which."""
    named = os.fspath(target) if target is not None else environment.get(SERVICE, "")
    if not named:
        raise UsageError(
            "it was not said which service is meant",
            kind="no-service-named",
            hint=f"pass a run root or HOST:PORT, or set {SERVICE} to one",
        )
    token = token if token is not None else environment.get(SERVICE_TOKEN)
    trust = _trust(tls)
    if is_address(named):
        return lambda: Target(named, token, trust)

    def find() -> Target:
        endpoint = read_endpoint(named)
        return Target(endpoint.reach, token or read_token(named), trust or (Tls() if endpoint.is_tls else None))

    return find


def is_address(named: str) -> bool:
    """Say whether this is ``host:port``, and no directory."""
    return _ADDRESS.fullmatch(named) is not None and not Path(named).is_dir()


def _trust(tls: Tls | str | bool | None) -> Tls | None:
    if tls is None or tls is False:
        return None
    if tls is True:
        return Tls()
    return Tls(tls) if isinstance(tls, str) else tls
