"""Find out how a service stands: from itself, or where it does not answer from what it has left. Changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.errors import ServiceError
from milepost.service.asking import Asking, Reach
from milepost.service.endpoint import SERVICE, Endpoint, read_endpoint
from milepost.service.resting import at_rest, last_word
from milepost.service.standing import Standing
from milepost.store.lock import WRITER_LOCK, read_holder
from milepost.store.process import boot_id

_NOT_RUNNING = "not running"
_OF_TLS = ("CERTIFICATE", "certificate", "Tls handshake", "SSL_ERROR")


@dataclass(frozen=True, slots=True)
class Looked:
    """Say how a service stands; where nobody answers ``rest`` says that, and ``advice`` what to do."""

    standing: Standing
    rest: str = ""
    advice: str = ""
    is_over: bool = False
    """Whether it is known that no process has it: what it has in memory is kept for the next one."""


def look(reach: Reach, clock: Clock, before: Looked | None = None) -> Looked:
    """Return how a service stands. ``before`` is the look before: where nothing was written since, it is not read again.

    Raises what `Asking.standing` and `at_rest` raise; `ServiceError` (kind ``unreachable``) only of one named by its address.
    """
    endpoint, why = read_endpoint(reach.root) if reach.root is not None else None, ""
    if endpoint is None or not endpoint.is_dead:
        try:
            with Asking(reach) as asking:
                return Looked(asking.standing())
        except ServiceError as error:
            if endpoint is None or error.kind != "unreachable":
                raise
            why = str(error.facts["cause"]).rpartition("last error: ")[2]
    assert reach.root is not None
    rest, advice = _rest(reach.root, endpoint, why)
    if before is not None and (before.rest, before.advice) == (rest, advice):
        return before  # all that lies in memory is read through for it
    return Looked(at_rest(reach.root, clock), rest, advice, rest.startswith(_NOT_RUNNING))


def _rest(root: str, endpoint: Endpoint, why: str) -> tuple[str, str]:
    start, since = f"milepost serve {root} goes on from there", last_word(root, endpoint)
    holder = read_holder(os.path.join(root, SERVICE, WRITER_LOCK))
    if endpoint.is_dead and holder is not None and holder.is_alive:
        return (
            f"not answering yet: pid {holder.pid} has the root since {holder.claimed_at}",
            "it begins, or ends, just now: look again",
        )
    if endpoint.has_ended:
        return f"{_NOT_RUNNING} since {since}", start
    if endpoint.is_dead:
        return f"{_NOT_RUNNING}, killed after {since}", start
    if endpoint.boot_id != boot_id():
        said = f"no answer from {endpoint.address}, where a process of another machine has listened ({why})"
        return said, f"if that machine is gone: {start}, with what is on disk"
    if endpoint.is_tls and any(word in why for word in _OF_TLS):
        said = f"no trust in what answers at {endpoint.address}, pid {endpoint.pid} by its record ({why})"
        return said, "its certificate is not trusted here: --tls-ca names a file with who has signed it"
    return (
        f"no answer from pid {endpoint.pid} at {endpoint.address} ({why})",
        f"kill -9 {endpoint.pid} is safe at any moment; then {start}",
    )
