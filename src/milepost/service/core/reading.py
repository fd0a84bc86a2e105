"""Hand versions out, and know who reads which: for as long as somebody does, its bytes stay."""

from __future__ import annotations

from collections.abc import Callable

from milepost.service.core.desk import Desk
from milepost.service.core.events import Caller, Fetch, Refused, Request, Take
from milepost.service.core.fetching import at_the_end, judge
from milepost.service.core.holding import held
from milepost.service.core.records import Commit, Tier


class Readers:
    """Be those who have versions, and those who wait for one. ``tiers`` says where the bytes of a version can be read from."""

    def __init__(self, desk: Desk, tiers: Callable[[Commit], tuple[Tier, ...]]) -> None:
        self._desk = desk
        self._tiers = tiers
        self._waiting: dict[Request, Fetch] = {}
        self._leases: dict[Caller, dict[Commit, Request]] = {}
        """Which versions each reader has, and by which request; empty where it was given one twice."""

    @property
    def in_use(self) -> set[Commit]:
        """Return the versions that somebody reads."""
        return {at for held in self._leases.values() for at in held}

    def fetch(self, event: Fetch) -> None:
        """Answer a fetch, now or later."""
        self._waiting[event.request] = event
        self._look_at(event)

    def look_again(self) -> None:
        """Answer whoever waits, now that something has changed."""
        for fetch in [*self._waiting.values()]:
            self._look_at(fetch)

    def time_passes(self) -> None:
        """Answer who has waited for long enough."""
        for fetch in [*self._waiting.values()]:
            if fetch.until_ns <= self._desk.now_ns:
                self._look_at(fetch)

    def _look_at(self, fetch: Fetch) -> None:
        catalogue = self._desk.catalogue
        verdict = None if catalogue.held else judge(catalogue, fetch, lambda at: bool(self._tiers(at)))
        if verdict is None and fetch.until_ns > self._desk.now_ns:
            return
        del self._waiting[fetch.request]
        if isinstance(verdict, Commit):
            leases = self._leases.setdefault(fetch.caller, {})
            leases[verdict] = "" if verdict in leases else fetch.request
            self._desk.reply(fetch.request, Take(self._desk.catalogue.weights[verdict], self._tiers(verdict)))
        else:
            self._desk.reply(fetch.request, verdict or (held(catalogue) if catalogue.held else at_the_end(fetch)))

    def readers(self, at: Commit) -> int:
        """Return how many read a version."""
        return sum(at in leases for leases in self._leases.values())

    def reads(self, caller: Caller) -> tuple[Commit, ...]:
        """Return which versions a reader has."""
        return tuple(sorted(self._leases.get(caller, ())))

    def cancel(self, request: Request) -> None:
        """Answer a request no more; where its answer was not heard, take back what it gave.

        What the reader was given by another request as well it has, and says itself when it needs it no more.
        """
        self._waiting.pop(request, None)
        for leases in self._leases.values():
            for at in [at for at, by in leases.items() if by == request]:
                del leases[at]

    def release(self, caller: Caller, at: Commit) -> None:
        """Note that a reader needs a version no more."""
        self._leases.get(caller, {}).pop(at, None)

    def forget_leases(self, caller: Caller) -> None:
        """Keep nothing any more for a reader that is not heard of."""
        self._leases.pop(caller, None)

    def forget(self, caller: Caller, answer: Refused) -> None:
        """Let go of a process that has ended, or that another has replaced."""
        self.forget_leases(caller)
        for request in [request for request, fetch in self._waiting.items() if fetch.caller == caller]:
            del self._waiting[request]
            self._desk.reply(request, answer)
