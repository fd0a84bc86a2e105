"""Find out how a service stands: from itself, or where it does not answer from what it has left. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.clock import Clock
from milepost.errors import ServiceError
from milepost.service.asking import Asking, Reach
from milepost.service.endpoint import Endpoint, read_endpoint
from milepost.service.resting import at_rest, last_word
from milepost.service.standing import Standing


@dataclass(frozen=True, slots=True)
class Looked:
    """Say how a service stands; ``rest`` says that nobody answers, and since when."""

    standing: Standing
    rest: str = ""


def look(reach: Reach, clock: Clock) -> Looked:
    """Return how a service stands. Raises what `Asking.standing` and `at_rest` raise; `ServiceError` (kind ``unreachable``,
    ``no-answer``) only of a service that was named by its address."""
    endpoint = read_endpoint(reach.root) if reach.root is not None else None
    if endpoint is None or not endpoint.is_dead:
        try:
            with Asking(reach) as asking:
                return Looked(asking.standing())
        except ServiceError as error:
            if endpoint is None or reach.root is None or error.kind not in ("unreachable", "no-answer"):
                raise
    assert reach.root is not None
    return Looked(at_rest(reach.root, clock), _rest(reach.root, endpoint))


def _rest(root: str, endpoint: Endpoint) -> str:
    since = last_word(root)
    if endpoint.has_ended:
        return f"not running since {since}"
    if endpoint.is_dead:
        return f"not running, killed after {since}"
    return f"no answer from pid {endpoint.pid} at {endpoint.address}"
