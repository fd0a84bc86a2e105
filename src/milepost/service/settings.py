"""Say how much the service keeps, how long it waits, and where it listens: all that an operator may set (C5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from milepost.errors import UsageError
from milepost.service.core.settings import Settings

_S = 10**9


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Say how a checkpoint service works. All of it has a default that is right on one machine.

    Raises `UsageError` (kind ``bad-setting``, ``insecure``) for what cannot work, and for what would hand weights to everybody.
    """

    backend: Literal["memory"] = "memory"
    memory_bytes: int | None = None
    """What all versions in memory may take; None: a quarter of what is free there when the service begins."""
    memory_keep_versions: int = 1
    disk_keep_versions: int = 5
    disk_path: str | None = None
    """Where versions go on disk; None: into the run root."""
    transport: str = "auto"
    """Which way bytes go: ``auto`` offers each, the fastest first; else the name of one."""
    commit_timeout_s: float = 120.0
    """For how long a commit waits for its next part."""
    fetch_timeout_s: float = 60.0
    """For how long a fetch may wait for news, at most."""
    incremental: bool = True
    incremental_threshold: Literal["auto"] | float = "auto"
    link_bytes_s: float = 125e6
    """How fast a reader gets bytes who has not measured it: a gigabit."""
    heartbeat_s: float = 5.0
    lease_s: float = 60.0
    """For how long a reader keeps a version after it was heard of last."""
    retry_s: float = 5.0
    """When what the disk refused is tried again."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the one it had before, or any."""
    bulk_port: int = 0
    token: str | None = ""
    """What callers have to know; empty: one is made, and lies in the run root for its owner; None: nothing is asked."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    """Set: callers need a certificate that it has signed."""
    insecure: bool = False
    """Whether it may be reached from other machines without TLS, or without a token."""
    max_message_bytes: int = 16 << 20
    max_calls: int = 4096
    """How many calls may be open at once; the next is told to come again."""

    def __post_init__(self) -> None:
        for name, lowest in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value < _MOST:
                raise _bad(name, value, f"{name} is at least {lowest}")
        for name, (is_right, what) in _RULES.items():
            if not is_right(getattr(self, name)):
                raise _bad(name, getattr(self, name), f"{name} is {what}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise _bad("tls_key", self.tls_key, "give both tls_cert and tls_key, or neither")
        if self.tls_ca is not None and self.tls_cert is None:
            raise _bad("tls_ca", self.tls_ca, "give tls_cert and tls_key, too")
        if not self.insecure and not is_loopback(self.host) and (self.tls_cert is None or self.token is None):
            raise UsageError(
                "anybody who reaches this address could read and replace the weights",
                kind="insecure",
                hint="give tls_cert and tls_key, and leave the token on; or say insecure=True where the network is trusted",
                host=self.host,
            )

    def core(self, free_memory_bytes: int) -> Settings:
        """Return what the core is told. ``free_memory_bytes``: what is free where versions are kept in memory."""
        return Settings(
            memory_bytes=free_memory_bytes // 4 if self.memory_bytes is None else self.memory_bytes,
            memory_keep=self.memory_keep_versions,
            disk_keep=self.disk_keep_versions,
            lease_ns=round(self.lease_s * _S),
            commit_ns=round(self.commit_timeout_s * _S),
            retry_ns=round(self.retry_s * _S),
        )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ServiceSettings:
        """Return what a table of settings says. Raises `UsageError` (kind ``bad-setting``) for a name that is none."""
        unknown = sorted({*table} - {*cls.__slots__})
        if unknown:
            raise _bad(unknown[0], table[unknown[0]], f"the settings are {', '.join(cls.__slots__)}")
        return cls(**table)


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bad(name: str, value: object, hint: str) -> UsageError:
    return UsageError(
        "the service cannot work with this setting",
        kind="bad-setting",
        hint=hint,
        setting=name,
        value=None if value is None else str(value),
    )


_MOST = 2**62
_LEAST: dict[str, float] = {
    "memory_bytes": 0,
    "memory_keep_versions": 1,
    "disk_keep_versions": 1,
    "commit_timeout_s": 0.001,
    "fetch_timeout_s": 0,
    "heartbeat_s": 0.001,
    "lease_s": 0.001,
    "retry_s": 0.001,
    "link_bytes_s": 1,
    "max_message_bytes": 64 << 10,
    "max_calls": 8,
}
_TRANSPORTS = ("auto", "shm", "files", "store", "bulk", "grpc", "rdma")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "backend": (lambda value: value == "memory", "`memory`; there is no other yet"),
    "transport": (lambda value: value in _TRANSPORTS, f"one of {', '.join(_TRANSPORTS)}"),
    "incremental_threshold": (
        lambda value: value == "auto" or (isinstance(value, int | float) and 0 <= value <= 1),
        "`auto`, or a fraction of the bytes from 0 to 1",
    ),
    "port": (lambda value: 0 <= value < 65536, "a port from 1 to 65535, or 0 for any"),
    "bulk_port": (lambda value: 0 <= value < 65536, "a port from 1 to 65535, or 0 for any"),
    "token": (
        lambda value: not value or (value.isascii() and value.isprintable() and len(value) >= 16),
        "16 printable letters or more",
    ),
    "tls_cert": (lambda value: value is None or Path(value).is_file(), "a file of PEM certificates"),
    "tls_key": (lambda value: value is None or Path(value).is_file(), "a file with a PEM key"),
    "tls_ca": (lambda value: value is None or Path(value).is_file(), "a file of PEM certificates"),
}
