"""Hand out what the ranks need to write blobs for one save: of which claim it is, and for which number.

It travels with the plans of ``torch.distributed.checkpoint``. But a planner that caches plans
(``enable_plan_caching=True``) hands out the *cached* plan where nothing has changed, and with it the errand of an earlier
save; and since that cache belongs to the planner's class, it may be the save of another run root: the actor's, while the
critic is saved. An errand that was done before, or is another root's, is therefore not believed: ``progress.json``, which
the coordinator has written before any rank gets here, says the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from milepost.errors import ConflictError, CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.records import Fence, Progress
from milepost.store.base import Store


@dataclass(frozen=True, slots=True)
class Errand:
    """Name one save: what a rank needs to know to write for it."""

    run_id: str
    term: int
    claim_id: str
    number: int
    """What the generation is going to have; it may get a higher one."""
    serial: int
    """How many saves of this claim were begun before it."""
    ranks: int
    base: int = 0
    """The generation that unchanged tensors may be shared with; 0: none."""


_turn = threading.Lock()
_done: dict[str, tuple[int, int]] = {}
"""By run: term and serial of the newest errand that this process has done."""


def errand_here(given: object, store: Store, ranks: int) -> Errand:
    """Return the errand of the save under way, by what the plan says if that is new.

    Raises `ConflictError` (kind ``other-root``) if this rank does not see the run root that the coordinator has claimed.
    """
    claim_id = _fence(store, given.term) if isinstance(given, Errand) and _is_new(given) else None
    if isinstance(given, Errand) and claim_id == given.claim_id:
        _note(given)
        return given
    try:
        now = load_record(store, layout.PROGRESS, Progress)
    except (NotFoundError, CorruptError) as error:
        raise _other_root(store) from error
    claim_id = _fence(store, now.term)
    if claim_id is None:
        raise _other_root(store)
    ranks = given.ranks if isinstance(given, Errand) else ranks
    return Errand(now.run_id, now.term, claim_id, now.generation, -1, ranks)


def _is_new(errand: Errand) -> bool:
    with _turn:
        return _done.get(errand.run_id, (0, -1)) < (errand.term, errand.serial)


def _note(errand: Errand) -> None:
    with _turn:
        _done[errand.run_id] = (errand.term, errand.serial)


def _fence(store: Store, term: int) -> str | None:
    try:
        return load_record(store, layout.fence(term), Fence).claim_id
    except (NotFoundError, CorruptError):
        return None


def _other_root(store: Store) -> ConflictError:
    return ConflictError(
        "this rank does not see the run root that the coordinator has claimed",
        kind="other-root",
        hint="all ranks need the same directory: a shared file system, and an absolute path",
        root=store.url,
    )
