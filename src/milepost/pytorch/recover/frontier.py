"""Know the place in the data up to which everything was trained, where a loader is ahead of training. A6

In asynchronous reinforcement learning a batch is drawn, sent to be rolled out, and trained minutes later or never, in any order.
A loader's own position is then ahead of what the weights have seen: a run that goes on from it never trains what was under way.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from milepost.errors import MismatchError, UsageError
from milepost.pytorch.recover.data_position import Place, Position, is_plain, plain_position, read_position, spans_of
from milepost.pytorch.recover.epochs import is_told_epochs, set_epoch, shares_of, untouched_state, workers_of
from milepost.pytorch.recover.generators import Orders, at_batch, before_epoch, check_repeatable, set_before, set_now
from milepost.pytorch.recover.sharing import same
from milepost.records import Difference
from milepost.state.protocol import Stateful

log = logging.getLogger("milepost")

_MOST_REASONS = 64
_OTHER = "other reasons"


@dataclass(frozen=True, slots=True)
class Drawn:
    """Hold where the loader was after one batch."""

    place: Place
    position: Any
    orders: Orders


class TrainedFrontier:
    """Draw batches from a loader that can say where it is, and remember which of them are trained.

    ``loader`` is iterated epoch by epoch, has ``state_dict`` and ``load_state_dict``, and goes on from there when it is iterated
    next: torchdata's ``StatefulDataLoader``, or one of your own. Iterating this gives ``(ordinal, batch)`` to the end of the
    epoch, and of the next one where nothing is left of it; `draw` goes on for ever. Ordinals count all batches from 0, over
    epochs and restarts. Say of each batch once that it was `trained` or `dropped`.

    The state is the loader's position after the last batch before which none is open, and the ordinals beyond it that are not:
    these are drawn again after a resume, and not given out. A batch that was drawn and is open is given out again, under the
    same ordinal. Only what is drawn ``ahead`` is kept in memory: one position of the loader each.

    The loader may have been brought to a position before it is given here, as long as nothing of it is told epochs.

    ``set_epoch`` of the loader, its samplers or its dataset is called with each epoch's number, also when a position is loaded.
    May be used by several threads: one draws, another trains and saves.
    """

    def __init__(self, loader: Any, *, ahead: int = 1000) -> None:
        if not isinstance(loader, Stateful) or isinstance(loader, type) or not isinstance(loader, Iterable):
            raise UsageError(
                "this loader cannot say where it is",
                kind="not-stateful",
                hint="torchdata.stateful_dataloader.StatefulDataLoader takes the arguments of torch's DataLoader",
                type=type(loader).__name__,
            )
        if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 1:
            raise UsageError("a number of batches is at least 1", kind="bad-ahead", hint="ahead=1000", ahead=ahead)
        check_repeatable(loader)
        self._loader: Any = loader
        self._made = untouched_state(loader)
        """Where the loader was when it was given here."""
        self._ahead = ahead
        self._drawing, self._lock = threading.Lock(), threading.Lock()
        self._iterator: Iterator[Any] | None = None
        self._first: Drawn | None = None
        """Where the loader was before its very first batch; None until then."""
        self._before: Drawn | None = None
        """Where it was before the first batch that is open."""
        self._frontier = 0
        """The batch after that position."""
        self._after: deque[Drawn] = deque()
        """Where it was after each batch from the frontier on."""
        self._given: set[int] = set()
        self._resolved: set[int] = set()
        self._dropped: dict[str, int] = {}
        self._place = Place(0, 0)
        self._epochs_begun = 0
        """How many were begun, also before a resume."""
        self._orders = Orders()
        self._again: Drawn | None = None
        """Where to go back to, after a draw that failed."""

    @property
    def frontier(self) -> int:
        """Return the ordinal of the first batch that is neither trained nor dropped, perhaps not drawn yet."""
        with self._lock:
            # After a resume the loader has yet to pass over what is resolved: until then its position is an older one.
            return next(ordinal for ordinal in count(self._frontier) if ordinal not in self._resolved)

    @property
    def open(self) -> tuple[int, ...]:
        """Return the ordinals that were given out and are neither trained nor dropped."""
        with self._lock:
            return tuple(sorted(self._given))

    @property
    def epoch(self) -> int:
        """Return the epoch that is drawn from; the next one, once the end of it has been seen."""
        return self._place.epoch

    @property
    def dropped_by_reason(self) -> Mapping[str, int]:
        """Return how many batches were dropped in the whole run, by reason."""
        with self._lock:
            return {**self._dropped}

    def __len__(self) -> int:
        """Return how many batches an epoch has, as the loader says."""
        return len(self._loader)

    def draw(self) -> tuple[int, Any]:
        """Return the next batch that is not resolved, and its ordinal; where an epoch is over, of the next one.

        Raises `UsageError`: kind ``too-far-ahead`` when ``ahead`` batches are open or wait for one that is; ``empty-loader``.
        """
        found = self._take(across=True)
        assert found is not None
        return found

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        found = self._take(across=True)
        while found is not None:
            yield found
            found = self._take(across=False)

    def trained(self, *ordinals: int) -> None:
        """Note that batches were trained. Raises `UsageError` for one that was not given out or is resolved, and notes none."""
        with self._lock:
            self._resolve(ordinals)

    def dropped(self, *ordinals: int, reason: str) -> None:
        """Note that batches will never be trained, and why: ``stale``, ``failed``. Counted by reason, otherwise as `trained`."""
        if not isinstance(reason, str) or not reason or len(reason) > 100:
            raise UsageError("a reason is a few words", kind="bad-reason", hint='reason="stale"', reason=reason)
        with self._lock:
            self._resolve(ordinals)
            known = reason in self._dropped or len(self._dropped) < _MOST_REASONS
            name = reason if known else _OTHER
            self._dropped[name] = self._dropped.get(name, 0) + len(ordinals)

    def state_dict(self) -> dict[str, Any]:
        """Return the position at the frontier. The loader is not asked: another thread may be drawing from it."""
        with self._lock:
            before = self._before
            return Position(
                ordinal=self._frontier,
                place=before.place if before else self._place,
                loader=copy.deepcopy(before.position if before else self._made),
                orders=before.orders if before else Orders(),
                begun=before is not None,
                epochs_begun=self._epochs_begun,
                beyond=spans_of(self._resolved),
                open=len(self._given),
                dropped={**self._dropped},
                shares=shares_of(self._loader),
                workers=workers_of(self._loader),
                batches=_length_of(self._loader),
            ).as_state()

    def state_differences(self, state: Any, /) -> list[Difference]:
        """Return why the loader would not take a position. Raises `CorruptError` (kind ``bad-position``) for what is none."""
        if is_plain(state):
            told = is_told_epochs(self._loader)
            return [Difference("data/epoch", "not saved: it is the loader's own position", "set_epoch", "value")] if told else []
        saved = read_position(state)
        here = {"ranks that share an epoch": shares_of(self._loader), "workers": workers_of(self._loader)}
        there = {"ranks that share an epoch": saved.shares, "workers": saved.workers}
        moved = saved.begun or self._is_elsewhere(saved)
        names = [name for name in here if moved and here[name] != there[name]]
        return [Difference(f"data/{name}", str(there[name]), str(here[name]), "value") for name in names]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position. Batches that were given out are open no more; what was open then is given out again.

        A loader's own position, as it says it without this, is taken as well: ordinals begin there. Not where something of it is
        told epochs: which it was in is not known.

        Raises `CorruptError` (kind ``bad-position``) for what is none, and `MismatchError` (kind ``data-position``) for one of
        another number of ranks or workers, or that the loader does not take. Nothing is changed then, but for the loader in the
        last case.
        """
        differences = self.state_differences(state)
        if differences:
            raise _not_taken(*differences)
        saved = plain_position(state, before_epoch(self._loader)) if is_plain(state) else read_position(state)
        with self._drawing, self._lock:
            self._go_to(saved)

    def _go_to(self, saved: Position) -> None:
        before = Drawn(saved.place, saved.loader, saved.orders) if saved.begun else self._first
        if before is None and self._before is not None:
            raise _not_taken(Difference("data/loader", "where it began", "not known, and it has been moved", "value"))
        if before is None and self._is_elsewhere(saved):
            self._load(saved.loader)  # begun by the first draw, as it was in the run that has saved
            self._made = copy.deepcopy(saved.loader)
        # A loader draws from torch's generator when it begins. It begins here, and not at the next draw: the generators are
        # loaded after this, and are then those of a run that was never interrupted.
        iterator = None if before is None else self._begun_at(before)
        self._iterator, self._before, self._again = iterator, before, None
        self._place = before.place if before else saved.place
        self._frontier, self._resolved = saved.ordinal, set(saved.ordinals())
        self._epochs_begun = saved.epochs_begun
        self._after.clear()
        self._given.clear()
        self._dropped = {**saved.dropped}
        batches = _length_of(self._loader)
        log.info("[data] %sgoes on %s", _who(), saved.told(batches))
        if saved.batches is not None and saved.batches != batches:
            log.warning("[data] an epoch had %d batches and has %s now: ordinals stand for other batches", saved.batches, batches)

    def _is_elsewhere(self, saved: Position) -> bool:
        """Say whether nothing was drawn when it was saved, and the loader was somewhere else than this one was made."""
        return not saved.begun and saved.loader is not None and not same(saved.loader, self._made)

    def _load(self, position: Any) -> None:
        with self._taking():
            self._loader.load_state_dict(copy.deepcopy(position))

    def _begun_at(self, at: Drawn) -> Iterator[Any]:
        with self._taking():
            set_epoch(self._loader, at.place.epoch)
            set_before(self._loader, at.orders)
            self._loader.load_state_dict(copy.deepcopy(at.position))
            iterator: Iterator[Any] = iter(self._loader)
            set_now(self._loader, at.orders)
        self._orders = at.orders
        return iterator

    @contextmanager
    def _taking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever a loader raises: torchdata asserts, others look up keys.
            self._iterator = None
            raise _not_taken(Difference("data/loader", "a position", f"{type(error).__name__}: {error}", "value")) from error

    def _take(self, *, across: bool) -> tuple[int, Any] | None:
        """Return the next batch to give out; None at the end of an epoch, unless it goes on across it."""
        with self._drawing:
            while True:
                self._check_room()
                try:
                    found = self._drawn()
                except BaseException:
                    # The loader has moved, perhaps, and nobody has the batch. The next draw goes back for it: one that is passed
                    # over would shift all ordinals after it when a run goes on from before it.
                    self._iterator, self._again = None, self._after[-1] if self._after else self._before
                    raise
                if found is None and not across:
                    return None
                if found is not None and found[0] in self._given:
                    return found

    def _drawn(self) -> tuple[int, Any] | None:
        """Draw from the loader, and note where it is then; None if the epoch is over."""
        if self._iterator is None:
            self._iterator = self._begun()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._check_not_empty()
            self._iterator, self._place = None, Place(self._place.epoch + 1, 0)
            return None
        self._orders = at_batch(self._loader, self._orders)
        place = Place(self._place.epoch, self._place.batches + 1)
        drawn = Drawn(place, copy.deepcopy(self._loader.state_dict()), self._orders)
        with self._lock:
            ordinal = self._frontier + len(self._after)
            self._after.append(drawn)
            self._place = place
            if ordinal not in self._resolved:
                self._given.add(ordinal)
            self._advance()
        return ordinal, batch

    def _begun(self) -> Iterator[Any]:
        if self._again is not None:
            at, self._again = self._again, None
            self._place = at.place
            return self._begun_at(at)
        # An epoch that was begun ahead of training, and is begun again after a resume, has drawn from torch's generator before:
        # that is loaded as it was since, and would else have moved twice.
        again = self._place.epoch < self._epochs_begun
        self._epochs_begun = max(self._epochs_begun, self._place.epoch + 1)
        with torch.random.fork_rng(devices=[], enabled=again):
            set_epoch(self._loader, self._place.epoch)
            self._orders = before_epoch(self._loader)
            if self._before is None:
                position = copy.deepcopy(self._loader.state_dict())  # torchdata begins the epoch here, and draws
                first = Drawn(self._place, position, at_batch(self._loader, self._orders))
                with self._lock:
                    self._first = self._before = first
            return iter(self._loader)

    def _check_not_empty(self) -> None:
        # Nobody knows how much is left of the first epoch: the loader may have been given at the end of it.
        if self._place.batches == 0 and self._place.epoch:
            raise UsageError(
                "the loader gives no batch",
                kind="empty-loader",
                hint="is its dataset empty on this rank, or an iterator that can be read only once?",
                epoch=self._place.epoch,
            )

    def _check_room(self) -> None:
        with self._lock:
            if len(self._after) < self._ahead:
                return
            raise UsageError(
                "too many batches were drawn after one that is neither trained nor dropped",
                kind="too-far-ahead",
                hint="call trained() or dropped() for each batch; or give TrainedFrontier(loader, ahead=...) more room",
                open=self._frontier,
                drawn=self._frontier + len(self._after),
                ahead=self._ahead,
            )

    def _resolve(self, ordinals: tuple[int, ...]) -> None:
        for ordinal in ordinals:
            if ordinal not in self._given or ordinals.count(ordinal) > 1:
                raise self._no_such(ordinal)
        self._given.difference_update(ordinals)
        self._resolved.update(ordinals)
        self._advance()

    def _no_such(self, ordinal: int) -> UsageError:
        drawn = self._frontier + len(self._after)
        known = 0 <= ordinal < self._frontier or ordinal in self._resolved or ordinal in self._given
        return UsageError(
            "this batch is trained or dropped already" if known else "no batch of this ordinal was given out",
            kind="resolved-twice" if known else "not-drawn",
            hint="resolve each ordinal once; after a resume what was open is given out again",
            ordinal=ordinal,
            frontier=self._frontier,
            drawn=drawn,
        )

    def _advance(self) -> None:
        while self._after and self._frontier in self._resolved:
            self._resolved.discard(self._frontier)
            self._before = self._after.popleft()
            self._frontier += 1


def _not_taken(*differences: Difference) -> MismatchError:
    return MismatchError(
        "the loader does not take the position that was saved",
        differences,
        kind="data-position",
        hint="give it the dataset, samplers and num_workers with which it was saved, or leave the position out",
    )


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _who() -> str:
    """Name this rank, where there are several: each tells its own place."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return f"rank {dist.get_rank()} " if several else ""
