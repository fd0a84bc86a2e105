"""Keep a generation whatever retention says, from any process, in two steps (rule 17)."""

from __future__ import annotations

from contextlib import suppress

from milepost.errors import NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.publish.signed import refuse_unsigned
from milepost.publish.view import View, read
from milepost.records import Pin, Summary
from milepost.store.base import Store


def pin(store: Store, number: int, *, by: str = "") -> Summary:
    """Pin a live generation and return it. Raises `NotFoundError` if it is not live any more.

    First the wish, durable; then the look whether the generation is live; then the promise. A writer that retires looks
    at the wishes once more before it deletes, so one of the two sees the other. And only a promise makes alive: a wish
    that is about to fail must not let a claimer roll back to a generation whose blobs are being deleted.
    """
    refuse_unsigned(store)
    name = layout.pin(number)
    view = read(store)
    found = _pinnable(store, view, number)
    if number in view.pins and view.pins[number].state == "held":
        # Asking again must not turn a promise into a wish: killed in between, it would break the first one.
        return found
    store.replace(name, encode(Pin(view.run_id, number, "wanted", by)))
    try:
        found = _pinnable(store, read(store), number)
        store.replace(name, encode(Pin(view.run_id, number, "held", by)))
    except NotFoundError:
        unpin(store, number)
        raise
    except StoreError:
        # A wish that nobody answers would hold a generation's bytes for ever, on a disk that is full perhaps.
        with suppress(StoreError):
            unpin(store, number)
        raise
    return found


def _pinnable(store: Store, view: View, number: int) -> Summary:
    if number not in view.live:
        raise NotFoundError(
            "this generation is not there, or has been retired; only a live one can be pinned",
            kind="not-live",
            hint=f"milepost ls {store.url} shows the live ones",
            root=store.url,
            generation=number,
        )
    if number <= view.unsure:
        raise NotFoundError(
            "this generation may be half deleted: a manifest above the newest cannot be read, and may have dropped it",
            kind="unsure",
            hint=f"resume from it and save, which copies what it has; milepost verify {store.url}",
            root=store.url,
            generation=number,
        )
    return view.live[number]


def unpin(store: Store, number: int) -> None:
    """Remove the pin; the next publish retires the generation if nothing else keeps it."""
    store.delete(layout.pin(number))
    store.sync(layout.PINS)
