"""Publish a generation: create its manifest, find out whether that happened, and only then acknowledge (rules 9 to 13).

A `Chain` is what one writer knows of its own line of generations. It moves forward only here, and only when a manifest
is known to be there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from milepost.errors import ConflictError, CorruptError, MismatchError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.manifest import encode, load_record
from milepost.publish.term import Claim
from milepost.publish.view import read_pins
from milepost.records import Fence, Manifest, Summary
from milepost.store.base import Store

KeepRule = Callable[[Mapping[int, Summary], frozenset[int]], frozenset[int]]
"""Choose what stays: from the live generations with the new one among them, and the pinned numbers, to the numbers kept."""

_CREATES = 2
"""How often one save tries to create a manifest whose outcome it could not learn."""


@dataclass(slots=True)
class Chain:
    """Know one writer's generations: the head, what is live, which number is next, and what is still to be deleted."""

    run_id: str
    term: int
    claim_id: str
    term_head: int
    term_next: int
    head: Summary | None
    live: dict[int, Summary]
    next: int
    unsure: int = 0
    """Generations up to this number may be half deleted: nothing new may name their blobs (rule 3a)."""
    barrier: int = 0
    """Nothing with a number at or below this may be deleted: an unreadable manifest may name it (rule 3a)."""
    dropped: dict[int, Summary] = field(default_factory=dict)
    """Generations which a published manifest dropped and which are not deleted yet: a pin or a failing disk held them up."""
    condemned: set[str] = field(default_factory=set)
    """Blobs whose manifest is deleted already, and which are to go too."""
    attempted: set[str] = field(default_factory=set)
    """Blobs which a manifest with an unknown outcome named: not deleted until some manifest holds that number (rule 12)."""
    last_timestamp: int = 0
    base: int = 0
    """The number of the generation that the live state goes back to: committed or loaded last; 0 if it started anew."""
    tried: set[str] = field(default_factory=set)
    """Write ids of every attempt at the number that is next."""
    attempts: set[str] = field(default_factory=set)
    """Those of them made since the last load: should one turn out published, it is the base."""
    newest_bytes: bytes = b""
    """The record of the manifest published last: to encode 100,000 arrays once more would take a tenth of a second."""

    @property
    def line(self) -> dict[int, Summary]:
        """Return the live generations that the live state goes back to: the base and what that goes back to (rule 27)."""
        base = self.live.get(self.base)
        numbers = {base.number, *base.line} if base else set()
        return {number: summary for number, summary in self.live.items() if number in numbers}

    @property
    def label(self) -> str:
        """Return what this writer's temporary files carry in their names."""
        return layout.label(self.term)


def chain_of(claimed: Claim) -> Chain:
    """Return the chain that a fresh claim starts with."""
    view, settlement = claimed.view, claimed.settlement
    stamps = [summary.commit_timestamp for summary in view.listing.summaries.values()]
    return Chain(
        claimed.run_id,
        claimed.term,
        claimed.claim_id,
        settlement.head,
        settlement.next,
        view.head,
        dict(view.live),
        settlement.next,
        settlement.unsure,
        view.barrier,
        # A wanted pin makes nothing alive, but its generation is still there and its blobs count as named (rule 15).
        dropped={
            number: old
            for number, old in view.listing.summaries.items()
            if number in view.pins and number not in view.live and number not in view.foreign
        },
        last_timestamp=max(stamps, default=0),
    )


def publish(store: Store, chain: Chain, draft: Manifest, keep: KeepRule, now_ns: int) -> Manifest:
    """Create the manifest of a new generation on top of the chain, and return it once it is certain that it counts.

    ``draft`` holds the content; number, parent, keep, line, ``rollback_to`` and timestamp are filled in here, since they
    change with each attempt. Raises `ConflictError` if this writer has been fenced: whether the save counts is then for the
    claimer to say. Raises `StoreError` if it could not be learnt whether the manifest landed: the number stays reserved.
    """
    pinned = frozenset(read_pins(store, chain.run_id))
    while True:
        manifest = _complete(chain, draft, keep, pinned, now_ns)
        holder = _create(store, chain, manifest)
        if holder is None:
            break
        _step_over(store, chain, holder, manifest.number)
    check_still_ours(store, chain)
    _advance(chain, manifest)
    return manifest


def _complete(chain: Chain, draft: Manifest, keep: KeepRule, pinned: frozenset[int], now_ns: int) -> Manifest:
    number = chain.next
    manifest = dataclasses.replace(
        draft,
        run_id=chain.run_id,
        number=number,
        term=chain.term,
        parent=chain.head.number if chain.head else 0,
        term_head=chain.term_head,
        term_next=chain.term_next,
        term_unsure=chain.unsure,
        rollback_to=_rollback_to(chain, draft),
        line=(*sorted(chain.line), number),
        commit_timestamp=max(now_ns, chain.last_timestamp + 1),
    )
    # `keep` never takes a dead number in again: it can only name what is live now, or the generation itself (rule 2).
    kept = keep({**chain.live, number: manifest}, pinned) & {*chain.live, number}
    line = tuple(one for one in manifest.line if one in kept)
    return dataclasses.replace(manifest, keep=tuple(sorted(kept)), line=line)


def _rollback_to(chain: Chain, draft: Manifest) -> int | None:
    """Return the base's number where it is not the head (rule 27). A trim is the base again, and says what that said."""
    if draft.trim_of is not None:
        return draft.rollback_to
    return chain.base if chain.head and chain.head.number != chain.base else None


def build_on(chain: Chain, number: int) -> None:
    """Note that a generation was loaded (0: that the state starts anew): what is published next goes back to it."""
    chain.base = number
    chain.attempts.clear()


def _create(store: Store, chain: Chain, manifest: Manifest) -> Summary | int | None:
    """Create the manifest; return None if it is there now, else what holds its number (0 if that cannot be read).

    Raises the `StoreError` of the create if the outcome stays unknown (rule 12): a request that timed out may still
    land, even much later. The same number is then tried again by the next save, and no blob this attempt named is deleted.
    Where it is certain that nothing was done (a full disk, say) the attempt is forgotten, and its blobs may go at once.
    """
    name, data = layout.manifest(manifest.number), encode(manifest)
    chain.newest_bytes = data
    failure: StoreError | None = None
    unknown = False
    # Noted first: a create that succeeds may still fail to be acknowledged, and is then found by the next save.
    chain.tried.add(manifest.write_id)
    chain.attempts.add(manifest.write_id)
    for _ in range(_CREATES):
        try:
            if store.create(name, data, label=chain.label):
                return None
        except StoreError as error:
            failure = error
            if not error.undone:
                unknown = True
                chain.attempted.update(blob.name for blob in manifest.blobs)
        holder = _holder(store, manifest.number)
        if isinstance(holder, Summary) and holder.write_id == manifest.write_id:
            # A lost answer: our create landed. Its name may not be durable yet, and we acknowledge only what is.
            store.sync(layout.GENERATIONS)
            return None
        if holder is not None:
            return holder
    if failure is not None and not unknown:
        chain.tried.discard(manifest.write_id)
        chain.attempts.discard(manifest.write_id)
    if failure is None and not chain.attempted:
        return 0  # taken by something that cannot be read at all: a directory, say
    raise failure or StoreError(
        "a manifest appears and vanishes",
        kind="unstable",
        retryable=True,
        hint="look what else writes to this directory: a sync tool, a second mount",
        name=name,
        root=store.url,
    )


def _holder(store: Store, number: int) -> Summary | int | None:
    """Return the manifest that holds a number, 0 if it cannot be read or says another number, None if there is none."""
    name = layout.manifest(number)
    try:
        holder = load_record(store, name, Summary)
    except NotFoundError:
        return None
    except (CorruptError, MismatchError):
        return 0
    return holder if holder.number == number else 0


def _step_over(store: Store, chain: Chain, holder: Summary | int, number: int) -> None:
    """Go past an occupied number (rule 11)."""
    if isinstance(holder, Summary) and holder.run_id == chain.run_id and holder.term == chain.term:
        if holder.write_id not in chain.tried:
            raise replaced(store, chain)
        _adopt_own(store, chain, number)
    elif isinstance(holder, Summary) and holder.run_id == chain.run_id and holder.term > chain.term:
        raise fenced(store, chain, holder.term)
    else:
        # Void: a paused writer of a lower term created it after we had settled; or foreign; or unreadable. It stays taken.
        chain.next = number + 1
        if holder == 0:
            chain.barrier = max(chain.barrier, number)


def settle_attempt(store: Store, chain: Chain) -> Manifest | None:
    """Find out whether an attempt with an unknown outcome has landed by now; it is the head then, and returned."""
    holder = _holder(store, chain.next) if chain.tried else None
    if not isinstance(holder, Summary) or holder.write_id not in chain.tried:
        return None
    return _adopt_own(store, chain, holder.number)


def _adopt_own(store: Store, chain: Chain, number: int) -> Manifest:
    """Take an earlier attempt of ours, whose outcome was unknown, as what it is: published. It becomes the parent.

    It becomes the base only if the live state still goes back to it: the user may have loaded another generation since.
    """
    earlier = load_record(store, layout.manifest(number), Manifest)
    store.sync(layout.GENERATIONS)
    base = earlier.number if earlier.write_id in chain.attempts else chain.base
    _advance(chain, earlier)
    chain.base = base
    return earlier


def _advance(chain: Chain, manifest: Manifest) -> None:
    """Move the chain onto a generation that is known to be published."""
    summary = summary_of(manifest)
    kept = {*manifest.keep, manifest.number}
    chain.dropped.update({number: old for number, old in chain.live.items() if number not in kept})
    chain.live = {number: old for number, old in chain.live.items() if number in kept} | {manifest.number: summary}
    chain.head, chain.base, chain.next = summary, manifest.number, manifest.number + 1
    chain.last_timestamp = manifest.commit_timestamp
    # Some manifest holds the number that the unknown attempts were for. What they alone named is nobody's now.
    named = {blob.name for blob in manifest.blobs}
    chain.condemned.update(chain.attempted - named - {blob.name for old in chain.live.values() for blob in old.blobs})
    chain.attempted.clear()
    chain.attempts.clear()
    chain.tried.clear()


_summarized = attrgetter(*(item.name for item in dataclasses.fields(Summary)))


def summary_of(manifest: Manifest) -> Summary:
    """Return a manifest without its trees and leaves."""
    return Summary(*_summarized(manifest))


def check_still_ours(store: Store, chain: Chain) -> None:
    """Look for a higher fence *after* the create (rule 13); raise `ConflictError` if there is one. A reset makes one, too.

    Found: touch nothing. The claimer either saw our manifest, and keeps it, or did not, and made it void.
    """
    terms = [term for entry in store.list(layout.TERMS) if (term := layout.fence_term(entry.name)) is not None]
    if max(terms, default=0) > chain.term:
        raise fenced(store, chain, max(terms))
    if not _fence_is_ours(store, chain):
        raise replaced(store, chain)


def _fence_is_ours(store: Store, chain: Chain) -> bool:
    """Return whether our own fence is still there: the directory may have been removed, or a copy put in its place, in
    which another process has claimed the very same term.
    """
    try:
        return load_record(store, layout.fence(chain.term), Fence).claim_id == chain.claim_id
    except NotFoundError:
        return False
    except CorruptError:
        return True  # its name alone fences


def replaced(store: Store, chain: Chain) -> ConflictError:
    """Return the error of a writer whose root is not the one that it claimed."""
    return ConflictError(
        "this run root is not the one that this process claimed; it was removed, or another was put in its place",
        kind="replaced",
        hint="stop this process, and look before you start another",
        root=store.url,
        term=chain.term,
    )


def fenced(store: Store, chain: Chain, by: int) -> ConflictError:
    """Return the error of a writer that a later claim has ended."""
    return ConflictError(
        "another process has claimed this run; this one may not write to it any more",
        kind="fenced",
        hint=f"stop this process, or the other one ({_claimer(store, by)}); milepost ls {store.url} shows what counts",
        root=store.url,
        term=chain.term,
        claimed_by_term=by,
    )


def _claimer(store: Store, term: int) -> str:
    try:
        fence = load_record(store, layout.fence(term), Fence)
    except (NotFoundError, CorruptError):
        return f"term {term}"
    return f"pid {fence.pid} on {fence.host}, since {fence.claimed_at}"
