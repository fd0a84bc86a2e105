"""Learn what a writer process has published before it died, and tidy up behind it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from milepost.engine.session import Session
from milepost.engine.writer import discard
from milepost.errors import StoreError
from milepost.publish import layout
from milepost.publish.generation import check_still_ours, settle_attempt
from milepost.publish.pointer import point_at
from milepost.records import Manifest


def catch_up(session: Session, announced: Collection[str]) -> Manifest | None:
    """Bring a session to where its writer died; return the generation that the save became, if it did (rule 12).

    ``announced`` are the write ids of the manifests that it was about to create. It may have died just after one was there,
    and before it could say so: found without this, the number would look taken by somebody else.
    """
    store, chain = session.store, session.chain
    check_still_ours(store, chain)
    published = None
    while announced:
        chain.tried.update(announced)
        chain.attempts.update(announced)
        landed = settle_attempt(store, chain)
        if landed is None:
            break
        session.base = landed
        if landed.trim_of is None:
            published = landed
        elif session.resumed_from == landed.trim_of:
            session.resumed_from = landed.number
    if published is not None:
        with suppress(StoreError):  # a hint
            point_at(store, chain, published, store.read(layout.manifest(published.number)))
    _clear_litter(session)
    return published


def _clear_litter(session: Session) -> None:
    """Delete what the writer has written and no manifest names: nobody else would before the next claim.

    Unless it has tried a manifest of which nobody knows whether it will appear yet: then its blobs go with that number.
    """
    store, chain = session.store, session.chain
    named = {blob.name for each in (*chain.live.values(), *chain.dropped.values()) for blob in each.blobs}
    named |= chain.condemned | chain.attempted
    ours = [each.name for each in store.list(layout.BLOBS) if layout.blob_term(each.name) == chain.term]
    # Temporary files of records are left alone: another thread of this process may be writing one.
    litter = [name for name in ours if name not in named and not name.endswith(".tmp")]
    if chain.tried:
        chain.attempted.update(name for name in litter if not name.endswith(".part"))
    discard(session, litter)
