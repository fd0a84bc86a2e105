"""Take versions in, part by part, and make each visible at once: when all of it is here, and that is written down."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from milepost.records import Version
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.desk import Desk
from milepost.service.core.events import (
    Abort,
    Accept,
    Accepted,
    Arrived,
    Begin,
    Bring,
    Caller,
    Discard,
    Done,
    Finish,
    Link,
    Refused,
    Request,
    Settle,
)
from milepost.service.core.records import Commit, Committed, Entry, Saved, Stored, Tier, Weights
from milepost.service.core.staging import Staging, check_sizes, parent_of, same
from milepost.service.core.turns import Turn

_MOST_GIVEN_UP = 256


class Commits:
    """Be the commits on their way, and who waits for one.

    ``visible`` is called when a version has become visible, with the tier that holds its bytes; ``superseded`` says what a
    process is told whose place another has taken.
    """

    def __init__(
        self, desk: Desk, run_id: str, visible: Callable[[Commit, Tier], None], superseded: Callable[[Caller], Refused]
    ) -> None:
        self._desk = desk
        self._run_id = run_id
        self._visible = visible
        self._superseded = superseded
        self._stagings: dict[tuple[str, str], Staging] = {}
        """By component and key."""
        self._last: dict[Caller, Commit] = dict(_brought_last(desk.catalogue))
        """What each trainer brought last; one that goes on while the service is started anew does not begin anew itself."""
        self._given_up: OrderedDict[tuple[str, str], Refused] = OrderedDict()
        """Why commits were given up, for who asks only then: their parts were taken in before it was known."""
        self._waiting: dict[Request, Finish] = {}

    @property
    def staged_bytes(self) -> int:
        """Return how much memory is taken by what is on its way."""
        return sum(staging.size_bytes for staging in self._stagings.values() if staging.tier == "memory")

    def under_way(self) -> list[tuple[Begin, tuple[str, ...]]]:
        """Return the commits on their way, and which parts of each are not here yet."""
        return [(staging.begin, staging.missing) for staging in self._stagings.values()]

    @property
    def wanted(self) -> set[Commit]:
        """Return the versions that somebody waits for until they are durable."""
        found = [self._weights(each.caller, each.key) for each in self._waiting.values() if each.durable]
        return {weights.at for weights in found if weights is not None}

    def begin(self, event: Begin, tier: Tier) -> None:
        """Say which parts of a version are to be brought, and where: ``tier``, if it is the first that is heard of it."""
        staging = self._stagings.get((event.caller.component, event.key))
        weights = self._weights(event.caller, event.key)
        refused = check_sizes(event)
        before = staging.begin if staging is not None else weights
        if refused is None and before is not None:
            refused = same(event, before)
        if refused is not None:
            self._desk.reply(event.request, refused)
        elif weights is not None:
            self._desk.reply(event.request, Bring((), tier))
        elif staging is None and isinstance(parent := self._parent_of(event), Refused):
            self._desk.reply(event.request, parent)  # before its bytes are brought for nothing
        else:
            if staging is None:
                self._given_up.pop((event.caller.component, event.key), None)
                staging = Staging(event, tier, self._desk.now_ns + self._desk.settings.commit_ns)
                self._stagings[event.caller.component, event.key] = staging
                self._desk.do(Accept(event.caller, event.key, tier))
            self._desk.reply(event.request, Bring(staging.missing, staging.tier))

    def arrived(self, event: Arrived) -> None:
        """Take a part in. The last one makes the version visible."""
        staging = self._stagings.get((event.caller.component, event.key))
        if staging is None:
            weights = self._weights(event.caller, event.key)
            is_known = weights is not None and event.shard in weights.shards
            self._desk.reply(event.request, Accepted() if is_known else self._unknown(event))
            return
        was_missing = bool(staging.missing)
        refused = staging.add(event)
        self._desk.reply(event.request, refused or Accepted())
        if refused is None:
            staging.deadline_ns = self._desk.now_ns + self._desk.settings.commit_ns
            if was_missing and not staging.missing:
                self._write_down(staging)

    def _write_down(self, staging: Staging) -> None:
        begin, caller, key = staging.begin, staging.caller, staging.begin.key

        def decide() -> tuple[Entry, ...]:
            if self._stagings.get((caller.component, key)) is not staging:
                return ()  # given up meanwhile
            parent = self._parent_of(begin)
            if isinstance(parent, Refused):
                self._give_up(staging, parent)
                return ()
            staging.is_being_written = True
            weights = self._as_weights(staging, parent)
            # What was brought to disk is durable there already.
            return (Committed(weights), Stored(weights.at)) if staging.tier == "disk" else (Committed(weights),)

        def done() -> None:
            del self._stagings[caller.component, key]
            at = self._desk.catalogue.live
            assert at is not None
            self._last[caller] = at
            self._desk.do(Settle(caller, key, at))
            self._visible(at, staging.tier)

        def failed(why: str) -> None:
            staging.is_being_written = False
            hint = "free some space, then commit it again"
            self._give_up(staging, Refused("not-written", "the commit could not be written down", hint, {"cause": why}))

        self._desk.write_down(Turn(decide, done, failed))

    def _parent_of(self, begin: Begin) -> Commit | Refused | None:
        catalogue = self._desk.catalogue
        last = self._last.get(begin.caller, catalogue.current[begin.caller.component].branch)
        return parent_of(catalogue, begin, last)

    def _as_weights(self, staging: Staging, parent: Commit | None) -> Weights:
        begin, catalogue = staging.begin, self._desk.catalogue
        return Weights(
            at=Commit(catalogue.term, catalogue.next_number),
            version=Version(self._run_id, begin.step, begin.commit_timestamp),
            shards=tuple(staging.shards[slot] for slot in sorted(staging.shards)),
            parent=parent,
            producer=begin.caller.component,
            incarnation=begin.caller.incarnation,
            key=begin.key,
        )

    def finish(self, event: Finish) -> None:
        """Answer once a commit is visible, or durable."""
        self._waiting[event.request] = event
        self._look_at(event)

    def cancel(self, request: Request) -> None:
        """Answer a request no more. What it waited for goes on."""
        self._waiting.pop(request, None)

    def look_again(self) -> None:
        """Answer whoever waits, now that something has changed."""
        for each in [*self._waiting.values()]:
            self._look_at(each)

    def _look_at(self, event: Finish) -> None:
        weights, catalogue = self._weights(event.caller, event.key), self._desk.catalogue
        if weights is None:
            if (event.caller.component, event.key) in self._stagings:
                return
            self._answer(event, self._unknown(event))
        elif not event.durable or catalogue.is_durable(weights.at):
            self._answer(event, Done(weights, catalogue.is_durable(weights.at)))
        elif weights.at in catalogue.lost:
            hint = "load the live version into the trainer, then commit with it as the parent"
            facts = {"version": str(weights.at), "live": str(catalogue.live)}
            self._answer(event, Refused("lost-branch", "it was left behind before it was durable", hint, facts))

    def not_durable(self, at: Commit, why: str) -> None:
        """Tell whoever waits for a version to be durable that the disk has refused it."""
        hint = "free some space; it is live in memory, and is tried again"
        refused = Refused("not-durable", "it could not be written to disk", hint, {"version": str(at), "cause": why})
        for each in [*self._waiting.values()]:
            weights = self._weights(each.caller, each.key)
            if each.durable and weights is not None and weights.at == at:
                self._answer(each, refused)

    def abort(self, event: Abort) -> None:
        """Give a commit up, if it is not being written down already: then it is too late."""
        staging = self._stagings.get((event.caller.component, event.key))
        if staging is not None and staging.caller == event.caller:
            refused = Refused("aborted", "the commit was given up", "commit it again", {"reason": event.reason})
            self._give_up(staging, refused)

    def forget(self, caller: Caller) -> None:
        """Give up what a process had under way that has ended, or that another has replaced."""
        self._last.pop(caller, None)
        for staging in [each for each in self._stagings.values() if each.caller == caller]:
            self._give_up(staging, self._superseded(caller))
        for each in [each for each in self._waiting.values() if each.caller == caller]:
            self._answer(each, self._superseded(caller))

    def time_passes(self) -> None:
        """Give up commits whose parts do not come, and answer who has waited for long enough."""
        for staging in [*self._stagings.values()]:
            if staging.missing and staging.deadline_ns <= self._desk.now_ns:
                facts = {"missing": ", ".join(staging.missing)}
                refused = Refused("commit-timeout", "its other parts have not come", "commit it again", facts)
                self._give_up(staging, refused)
        for each in [*self._waiting.values()]:
            if each.until_ns <= self._desk.now_ns:
                hint = "it goes on: ask again, or look at milepost status"
                refused = Refused("commit-timeout", "it takes longer than you wait for", hint, {"key": each.key})
                self._answer(each, refused)

    def link(self, event: Link) -> None:
        """Note which generation of the run root holds a version."""
        catalogue = self._desk.catalogue

        def decide() -> tuple[Entry, ...]:
            if event.at in catalogue.weights:
                return (Saved(event.at, event.generation),)
            message, hint = "there never was such a version here", "milepost status shows which there are"
            return self._desk.refuse(event.request, "unknown-version", message, hint, version=str(event.at))

        def done() -> None:
            self._desk.reply(event.request, Accepted())

        self._desk.write_down(Turn(decide, done, lambda why: self._desk.not_written(event.request, why)))

    def _give_up(self, staging: Staging, refused: Refused) -> None:
        if staging.is_being_written:
            return  # whether it becomes visible is not ours to say any more
        caller, key = staging.caller, staging.begin.key
        why = Refused(refused.kind, refused.message, refused.hint, {"key": key, **refused.facts})
        del self._stagings[caller.component, key]
        self._given_up[caller.component, key] = why
        if len(self._given_up) > _MOST_GIVEN_UP:
            self._given_up.popitem(last=False)
        self._desk.do(Discard(caller, key))
        for each in [each for each in self._waiting.values() if (each.caller, each.key) == (caller, key)]:
            self._answer(each, why)

    def _unknown(self, event: Arrived | Finish) -> Refused:
        unknown = Refused("unknown-commit", "no commit of this key is under way", "begin it anew", {"key": event.key})
        return self._given_up.get((event.caller.component, event.key), unknown)

    def _answer(self, event: Finish, answer: Done | Refused) -> None:
        del self._waiting[event.request]
        self._desk.reply(event.request, answer)

    def _weights(self, caller: Caller, key: str) -> Weights | None:
        return self._desk.catalogue.committed(caller.component, key)


def _brought_last(catalogue: Catalogue) -> Iterator[tuple[Caller, Commit]]:
    """Yield what each process that is a component now has brought, in order."""
    for at, weights in sorted(catalogue.weights.items()):
        current = catalogue.current.get(weights.producer)
        if current is not None and current.incarnation == weights.incarnation:
            yield Caller(weights.producer, weights.incarnation), at
