"""Know who is who: of each component one process counts, the newest; of those before it nothing does any more."""

from __future__ import annotations

from collections.abc import Callable

from milepost.service.core.desk import Desk
from milepost.service.core.events import Caller, Hello, Refused, Request, Welcome
from milepost.service.core.records import Entry, Joined
from milepost.service.core.turns import Turn

_AGAIN = "say hello again; if another process has taken your place, end"


class Components:
    """Be the components that have joined. ``gone`` is called with a process that has ended or was replaced."""

    def __init__(self, desk: Desk, gone: Callable[[Caller], None]) -> None:
        self._desk = desk
        self._gone = gone
        self._heard_ns: dict[Caller, int] = {}
        self._known: dict[Caller, int] = {}
        """Who may have something under way, a silent one, too; and when each was heard of last."""

    def hello(self, event: Hello) -> None:
        """Let a process take the place of those before it. An earlier start of its component is refused."""
        caller, catalogue = event.caller, self._desk.catalogue

        def decide() -> tuple[Entry, ...]:
            current = catalogue.current.get(caller.component)
            if current is not None and current.incarnation == caller.incarnation:
                done()
                return ()
            if self._is_former(caller) or (current is not None and event.epoch < current.epoch):
                self._desk.reply(event.request, self.superseded(caller))
                return ()
            branch = None if event.step is None else catalogue.newest_at(event.step)
            return (Joined(caller.component, event.role, caller.incarnation, event.epoch, branch),)

        def done() -> None:
            for before in [each for each in self._known if each.component == caller.component and each != caller]:
                self.forget(before)
            self.hear(caller)
            self._desk.reply(event.request, Welcome(catalogue.live, catalogue.durable))

        self._desk.write_down(Turn(decide, done, lambda why: self._desk.not_written(event.request, why)))

    def hear(self, caller: Caller) -> None:
        """Note that a process is there."""
        if self.is_current(caller):
            self._heard_ns[caller] = self._known[caller] = self._desk.now_ns

    def is_current(self, caller: Caller) -> bool:
        """Say whether a process is the one that its component is now."""
        current = self._desk.catalogue.current.get(caller.component)
        return current is not None and current.incarnation == caller.incarnation

    def admits(self, request: Request, caller: Caller, *, trainer: bool = False, itself: bool = True) -> bool:
        """Hear of a caller; answer one that is nobody, or no longer anybody, and return False.

        ``itself``: it is not somebody else who may have spoken for it, an operator.
        """
        refused = self.refusal(caller)
        if refused is not None:
            self._desk.reply(request, refused)
            return False
        if itself:
            self.hear(caller)
        if trainer and self._desk.catalogue.current[caller.component].role != "trainer":
            hint = "connect with the role of a trainer, under another name than a sampler's"
            self._desk.refuse(request, "no-trainer", "only a trainer brings weights", hint, **_facts(caller))
            return False
        return True

    def refusal(self, caller: Caller) -> Refused | None:
        """Return what is said to a process that is nobody, or no longer anybody; None: it is who its component is now."""
        if self.is_current(caller):
            return None
        if self._is_former(caller):
            return self.superseded(caller)
        return Refused("not-joined", "nobody of that name is here", _AGAIN, _facts(caller))

    def heard_ns(self, caller: Caller) -> int | None:
        """Return when a process was heard of last; None for one that has ended, or was not heard of since the service began."""
        return self._known.get(caller)

    def superseded(self, caller: Caller) -> Refused:
        """Return what is said to a process that another has taken the place of."""
        current = self._desk.catalogue.current.get(caller.component)
        facts = {**_facts(caller), "current": current.incarnation if current else None}
        return Refused("superseded", "another process has taken the place of this one", "end this process", facts)

    def forget(self, caller: Caller) -> None:
        """Let go of a process that has ended."""
        self._heard_ns.pop(caller, None)
        self._known.pop(caller, None)
        self._gone(caller)

    def silent(self) -> list[Caller]:
        """Return, once, who was not heard of for as long as a lease lasts."""
        since_ns = self._desk.now_ns - self._desk.settings.lease_ns
        silent = [caller for caller, heard_ns in self._heard_ns.items() if heard_ns <= since_ns]
        for caller in silent:
            del self._heard_ns[caller]
        return silent

    def _is_former(self, caller: Caller) -> bool:
        return self._desk.catalogue.is_former(caller.component, caller.incarnation)


def _facts(caller: Caller) -> dict[str, object]:
    return {"component": caller.component, "incarnation": caller.incarnation}
