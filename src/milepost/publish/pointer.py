"""Write the two hints beside the truth: ``LATEST`` after a publish, ``progress.json`` before a save's first byte.

`milepost.publish.hints` reads them. Both names are such that somebody else may have used them before: a directory in which
another program keeps its own ``LATEST`` becomes a run root when milepost is pointed at it. What is not milepost's is never
overwritten: it gets another name first.
"""

from __future__ import annotations

import logging

from milepost.clock import Clock, utc_text
from milepost.encode.digest import sha256
from milepost.errors import ConflictError, CorruptError, NotFoundError, StoreError
from milepost.publish import layout
from milepost.publish.generation import Chain
from milepost.publish.hints import ENOUGH_BYTES, is_foreign
from milepost.publish.manifest import encode
from milepost.records import Latest, Progress, Summary
from milepost.store.base import Store

log = logging.getLogger("milepost")

_MOST_ASIDE = 1000


def point_at(store: Store, chain: Chain, newest: Summary, manifest: bytes) -> None:
    """Write ``LATEST``, with the digest of the manifest's bytes.

    A paused writer may write it late, so it may go backwards: pollers list as well (rule 21).
    """
    manifest_digest = sha256(manifest)
    latest = Latest(chain.run_id, newest.number, newest.step, manifest_digest)
    set_aside_foreign(store, layout.LATEST, chain.label)
    store.replace(layout.LATEST, encode(latest), durable=False, label=chain.label)


def note_progress(store: Store, chain: Chain, clock: Clock, *, attempt: int, step: int) -> None:
    """Record durably which step is about to be saved, so that after a crash the step reached is known (B18)."""
    progress = Progress(chain.run_id, chain.term, attempt, chain.next, step, utc_text(clock.wall_ns()))
    set_aside_foreign(store, layout.PROGRESS, chain.label)
    store.replace(layout.PROGRESS, encode(progress), label=chain.label)


def set_aside_foreign(store: Store, name: str, label: str) -> str | None:
    """Give what somebody else keeps under a hint's name another one, durably; return that, or None if there is nothing such.

    Interrupted, it is done or not done; done again, it finds nothing more to do.
    """
    try:
        if not is_foreign(store.read(name, 0, ENOUGH_BYTES)):
            return None
    except CorruptError:
        return None  # sealed as milepost seals, and not with this key
    except NotFoundError:
        pass  # nothing; or a link or a directory, which are not read, but would be replaced
    for count in range(_MOST_ASIDE):
        aside = layout.aside(name, label, count)
        # A move of what is not there counts as done if something is where it was to go: so a taken name is passed over first.
        if _is_taken(store, aside):
            continue
        try:
            store.move(name, aside)
        except NotFoundError:
            return None
        except ConflictError:
            continue
        store.sync("")
        log.warning("%s in %s was not milepost's: it is %s now", name, store.url, aside)
        return aside
    raise StoreError(
        "somebody else's file cannot be set aside: all names for it are taken",
        kind="name-taken",
        retryable=False,
        hint="move the older ones out of the run root",
        root=store.url,
        name=name,
    )


def _is_taken(store: Store, name: str) -> bool:
    try:
        store.read(name, 0, 0)
    except NotFoundError:
        return False
    return True
