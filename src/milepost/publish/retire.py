"""Delete what no manifest keeps: after a publish (rules 14 and 15), and once after a claim (rule 8)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from milepost.errors import NotFoundError, UsageError
from milepost.publish import layout
from milepost.publish.generation import Chain
from milepost.publish.term import Claim
from milepost.publish.view import View, read_pins
from milepost.records import Summary
from milepost.store.base import Store


@dataclass(frozen=True, slots=True)
class Retired:
    """Say what was deleted."""

    generations: tuple[int, ...] = ()
    blobs: tuple[str, ...] = ()


def retire(store: Store, chain: Chain) -> Retired:
    """Delete what published manifests dropped: their manifests, a sync, then the blobs which only they named.

    Never called but after an acknowledgement: only then is the dropping durable and known to count. If the disk fails
    half-way, what is left stays noted in the chain and is tried again after the next publish, or swept by the next claimer.
    """
    # Pins are listed again, the wanted ones too (rule 15): a pin that was placed after our manifest was written has
    # been promised that its generation stays.
    pinned = read_pins(store, chain.run_id)
    going = [old for number, old in sorted(chain.dropped.items()) if number not in pinned and number > chain.barrier]
    for old in going:
        store.delete(layout.manifest(old.number))
    if going:
        store.sync(layout.GENERATIONS)
    for old in going:
        chain.condemned.update(blob.name for blob in old.blobs)
        del chain.dropped[old.number]
    blobs = sorted(
        name for name in chain.condemned - _named(chain) - chain.attempted if (layout.blob_number(name) or 0) > chain.barrier
    )
    for name in blobs:
        store.delete(name)
    chain.condemned.difference_update(blobs)
    chain.condemned -= _named(chain)
    return Retired(tuple(old.number for old in going), tuple(blobs))


def _named(chain: Chain) -> set[str]:
    return {blob.name for old in (*chain.live.values(), *chain.dropped.values()) for blob in old.blobs}


def sweep(store: Store, claimed: Claim) -> Retired:
    """Delete the leftovers of lower terms: manifests that are neither live nor pinned, then blobs nobody names (rule 8).

    Only what was listed by the claim goes, only of lower terms: a later claimer's blobs may be there by now, and this
    process may be the paused one.
    """
    view = claimed.view
    # A manifest of another run was copied here by somebody, perhaps over ours: neither it nor its blobs are ours to delete.
    spared = {*view.live, *view.pins, *view.foreign}
    dead = [old for number, old in sorted(view.listing.summaries.items()) if number not in spared and number > view.barrier]
    for old in dead:
        store.delete(layout.manifest(old.number))
    if dead:
        store.sync(layout.GENERATIONS)
    gone = {old.number for old in dead}
    staying = [old for number, old in view.listing.summaries.items() if number not in gone]
    blobs = _unnamed(claimed, staying)
    for name in blobs:
        store.delete(name)
    _forget_marks(store, claimed, gone)
    return Retired(tuple(sorted(gone)), tuple(blobs))


def _forget_marks(store: Store, claimed: Claim, gone: Collection[int]) -> None:
    """Take the quarantine marks off numbers that nothing has any more: none of them is ever used again."""
    listing = claimed.view.listing
    there = {*listing.summaries, *listing.unreadable, *listing.misnamed} - {*gone}
    for number in claimed.view.marks:
        if number not in there and number < claimed.settlement.next:
            store.delete(layout.mark(number))


def _unnamed(claimed: Claim, staying: Iterable[Summary]) -> list[str]:
    named = {blob.name for old in staying for blob in old.blobs}
    return [entry.name for entry in claimed.blobs if entry.name not in named and _is_leftover(entry.name, claimed)]


def _is_leftover(name: str, claimed: Claim) -> bool:
    term = layout.blob_term(name)
    if term is None or term >= claimed.term:
        return False
    if name.endswith((".tmp", ".part")):
        return True
    # What an unreadable manifest names is unknown, but its blobs were written under its own number or a lower one (rule 3a).
    return (layout.blob_number(name) or 0) > claimed.view.barrier


def drop_unreadable(store: Store, claimed: Claim, number: int) -> None:
    """Give up a manifest that cannot be read, by an operator's word: what it alone named is swept by the next claim.

    Only under a claim (rule 3a): its settlement has recorded the number as used, and what may be half deleted as unsure. A
    bare delete would free the number, and forget the doubt.
    """
    check_unreadable(store, claimed.view, number)
    store.delete(layout.manifest(number))
    store.sync(layout.GENERATIONS)


def check_unreadable(store: Store, view: View, number: int) -> None:
    """Raise `UsageError` (kind ``readable``) if a generation can be read, and so need not be given up.

    Raises `NotFoundError` if there is none of this number.
    """
    there = {*view.listing.summaries, *view.listing.unreadable, *view.listing.misnamed}
    if number not in there:
        raise NotFoundError(
            "there is no such generation",
            kind="no-such-generation",
            hint=f"milepost ls {store.url} shows those there are",
            root=store.url,
            generation=number,
        )
    if number not in view.unreadable:
        raise UsageError(
            "only a manifest that cannot be read can be dropped",
            kind="readable",
            hint=f"milepost verify {store.url} names those that cannot",
            root=store.url,
            generation=number,
        )
