"""Save, load, verify, roll back and reset one path without a training loop around it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

from milepost.clock import Clock, SystemClock
from milepost.engine.arena import Arena
from milepost.engine.capture import Staged, capture
from milepost.engine.components import is_essential, is_name
from milepost.engine.events import Events
from milepost.engine.opening import Opened, open_session
from milepost.engine.provenance import attempt, identity
from milepost.engine.reader import RESTAGED_BYTES, UNKNOWN, build, restage
from milepost.engine.redact import redact_the_log
from milepost.engine.relief import clear_up, with_ballast, write_with_relief
from milepost.engine.session import Order, Session
from milepost.engine.settings import whole
from milepost.engine.writer import republish
from milepost.errors import CorruptError, NotFoundError, StoreError, UsageError
from milepost.lifecycle.recover import Skipped, choose
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import Report, no_such_generation
from milepost.lifecycle.verify import verify as verify_store
from milepost.publish import layout
from milepost.publish import reset as resetting
from milepost.publish.generation import KeepRule
from milepost.publish.retire import check_unreadable, drop_unreadable
from milepost.publish.signed import is_signing, open_root
from milepost.publish.view import View, read
from milepost.records import Manifest, Reset, Summary
from milepost.store.base import Store
from milepost.store.resolve import open_store

Root: TypeAlias = str | os.PathLike[str] | Store

KeyFile: TypeAlias = str | os.PathLike[str] | None
"""Where the key lies that signs what is written and checks what is read; None: where the environment says, if it does."""

WHOLE = "whole tree"
"""What the manifest notes of component ``extra`` if it is a tree that was saved as one: `load` returns it as one."""


def save(
    url: Root, tree: object, *, step: int = 0, keep: Keep | None = None, allow_pickle: bool = False, key_file: KeyFile = None
) -> Summary:
    """Save ``tree`` as a new generation at ``url`` and return it once it is durable. Saving again adds another.

    A dict whose keys are component names (``policy``, ``optimizer``, ...) is saved by component, so that `load` can read
    parts of it; any other tree is saved whole. Unchanged arrays are not written again.

    >>> saved = save("memory://docs", {"policy": {"w": [1.0, 2.0]}, "counters": {"step": 7}}, step=7)
    >>> saved.number, saved.step
    (1, 7)
    >>> load("memory://docs", parts=["policy"])
    {'policy': {'w': [1.0, 2.0]}}
    """
    by_component = isinstance(tree, Mapping) and bool(tree) and all(is_name(key) for key in tree)
    state: Mapping[str, object] = tree if by_component else {"extra": tree}  # type: ignore[assignment]
    step = whole("step", step)
    staged = capture(state, Arena(), allow_pickle=allow_pickle)  # first: what cannot be saved leaves no trace
    with _claimed(url, keep or Keep(), key_file=key_file) as opened:
        opened.session.build_on(_sound_base(opened))
        order = Order(step, "manual", exactness={} if by_component else {"extra": ("exact", WHOLE)})
        return _write(opened.session, staged, order)


def take_in(
    url: Root,
    state: Mapping[str, object],
    order: Order,
    *,
    fingerprint: Mapping[str, str],
    add: bool = False,
    key_file: KeyFile = None,
    check_source: Callable[[], None] = lambda: None,
) -> Summary:
    """Publish a state that was made elsewhere as a new generation, and return that. Nothing that is there is retired.

    ``check_source`` is called when all of the state was written, and raises if it is not to be published after all.

    ``fingerprint`` says what is known of where it was made. Raises `UsageError` (kind ``not-empty``) if there are generations
    and none is to be added.
    """
    for name, count in {"step": order.step, **order.counters}.items():
        whole(name, count)

    def keep(live: Mapping[int, Summary], pinned: frozenset[int]) -> frozenset[int]:
        check_source()  # what is kept is asked for last, before a manifest is written
        return _everything(live, pinned)

    staged = capture(state, Arena(), staging_bytes=RESTAGED_BYTES)
    with _claimed(url, Keep(), key_file=key_file) as opened:
        if not add:
            _refuse_what_is_there(opened.claimed.view, opened.session.store)
        opened.session.build_on(_sound_base(opened))
        opened.session.fingerprint = {**fingerprint, **UNKNOWN}
        return _write(opened.session, staged, order, keep)


def _write(session: Session, staged: Staged, order: Order, keep: KeepRule | None = None) -> Manifest:
    manifest = write_with_relief(session, staged, order, keep)
    clear_up(session)
    return manifest


def _sound_base(opened: Opened) -> Manifest | None:
    """Return the newest generation that verifies, to share unchanged leaves with; None if there is none."""
    try:
        return choose(opened.session.store, opened.claimed.view).manifest
    except CorruptError:
        return None


def load(
    url: Root,
    *,
    parts: Iterable[str] | None = None,
    which: Literal["latest"] | int = "latest",
    trust_pickle: bool = False,
    key_file: KeyFile = None,
) -> object:
    """Return a generation as a fresh tree, only the components named in ``parts`` if given; their bytes alone are read.

    ``which`` is ``latest`` or a generation's number. Needs no claim, and may run beside training. Every byte returned is
    verified; a damaged newest generation is passed over for the one before it, a damaged numbered one is a `CorruptError`.
    With a key, so is what is not signed with it.
    """
    if which != "latest" and (isinstance(which, bool) or not isinstance(which, int)):
        raise UsageError(
            'load takes which="latest" or a number', kind="bad-which", hint="milepost ls shows the numbers", which=which
        )
    store = open_root(url, SystemClock(), key_file, only_to_read=True)
    wanted = None if parts is None else (parts,) if isinstance(parts, str) else tuple(parts)
    refused: Exception | None = None
    rejected: tuple[Skipped, ...] = ()
    view = read(store)
    while True:
        try:
            return _loaded(store, view, which, wanted, rejected, trust_pickle=trust_pickle)
        except (CorruptError, NotFoundError) as error:
            # A manifest or a blob that is gone may have been retired while we read: then there is a newer head (rule 20).
            again = read(store)
            if _head_of(again) != _head_of(view):
                view, rejected = again, ()
            elif which == "latest" and error.kind == "damaged-leaf":
                rejected = (*rejected, Skipped(int(str(error.facts["generation"])), "damaged", error.message))
            else:
                raise error from refused
            refused = error


def _loaded(
    store: Store,
    view: View,
    which: Literal["latest"] | int,
    wanted: tuple[str, ...] | None,
    rejected: tuple[Skipped, ...],
    *,
    trust_pickle: bool,
) -> object:
    # Nothing live is touched here, so nothing is read twice: each leaf is verified on its way into a fresh tree.
    choice = choose(store, view, which, full=False, rejected=rejected, parts=wanted)
    if choice.skipped and _head_of(read(store)) != _head_of(view):
        # Passed over, perhaps, because it was retired while we looked: then a newer one is there, and not this older one.
        raise CorruptError(
            "generations were retired while they were read", kind="retired-meanwhile", hint="load once more", root=store.url
        )
    manifest = choice.manifest
    if manifest is None:
        raise NotFoundError("this run has no generation yet", kind="no-generation", hint="save one first", root=store.url)
    _make_names_durable(store)
    built = build(store, manifest, wanted, trust_pickle=trust_pickle)
    extra = manifest.component("extra")
    return built["extra"] if wanted is None and extra is not None and extra.reason == WHOLE else built


def _make_names_durable(store: Store) -> None:
    """See to it that a power cut does not take away what a caller is given: its writer may not have synced it yet (rule 20)."""
    try:
        store.sync(layout.GENERATIONS)
    except StoreError as error:
        # Who has no right to make it so (some file systems ask for one) is still to be let read; the writer's own sync follows.
        if error.kind not in ("read-only", "permission"):
            raise


def _head_of(view: View) -> int:
    return view.head.number if view.head else 0


def verify(url: Root, *, full: bool = True, key_file: KeyFile = None) -> Report:
    """Check every byte of a run root and report what is damaged. Changes nothing; may run beside training."""
    return verify_store(
        open_root(url, SystemClock(), key_file, only_to_read=True), full=full, spare=lambda name: not is_essential(name)
    )


def rollback(
    url: Root,
    to: int,
    *,
    take_over: bool = False,
    key_file: KeyFile = None,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Make generation ``to`` the newest again, by publishing a new one with the same content; return that.

    History only grows: what is newer than ``to`` stays until retention takes it. Raises `ConflictError` while the run is
    being trained, `NotFoundError` if ``to`` is not live, `CorruptError` if it is damaged.
    """
    store = open_root(url, SystemClock(), key_file)
    # Looked at before the claim: a slip of the finger changes nothing, and ends no other writer's claim.
    view = read(store)
    _check_target(store, view, to)
    target = _sound_target(store, view, to, progress)
    with _claimed(store, Keep(), take_over=take_over) as opened:
        # And again: only what is live by the claim itself may be rolled back to (rule 18).
        _check_target(store, opened.claimed.view, to)
        return _publish_again(opened.session, target)


def _sound_target(store: Store, view: View, to: int, progress: Callable[[int], None] | None) -> Manifest:
    try:
        target = choose(store, view, to, progress=progress).manifest
    except (CorruptError, NotFoundError):
        # A trainer that goes on meanwhile may have retired it while we looked: then it is gone, and not damaged (rule 20).
        _check_target(store, read(store), to)
        raise
    assert target is not None
    return target


def _publish_again(session: Session, target: Manifest) -> Summary:
    session.build_on(target)
    if session.base is None:
        # Its blobs may be deleted by a paused writer (rule 3a): what verified is copied to blobs of its own.
        session.fingerprint = dict(target.fingerprint)
        return _write(session, restage(session.store, target, Arena()), _order_of(target, "rollback"), _everything)
    again = dataclasses.replace(target, reason="rollback", trim_of=None)
    return with_ballast(session.store, lambda: republish(session, again, _everything))


def _order_of(target: Manifest, reason: str) -> Order:
    exactness = {component.name: (component.exactness, component.reason) for component in target.components}
    elapsed_s = float.fromhex(target.elapsed_s)
    return Order(target.step, reason, elapsed_s, dict(target.counters), dict(target.metrics), target.complete, exactness)


def sign(url: Root, to: Root, *, key_file: KeyFile = None) -> Summary:
    """Copy the newest sound generation of a run that was saved without a key to a new root, signed; return it.

    The old root stays as it is: killed half-way, it is done again. What is copied is trusted by this very act. Raises
    `UsageError` without a key, and if there is anything at ``to`` already.
    """
    clock = SystemClock()
    source, target = open_store(url, clock), open_root(to, clock, key_file)
    if not is_signing(target):
        raise UsageError(
            "signing takes a key", kind="no-key", hint="key_file=, --key-file, or MILEPOST_KEY_FILE", root=target.url
        )
    with suppress(NotFoundError):
        _refuse_what_is_there(read(target), target)  # before the claim: a slip of the finger ends no other writer's
    old, staged = _newest_of(source)
    with _claimed(target, Keep()) as opened:
        _refuse_what_is_there(opened.claimed.view, target)
        opened.session.fingerprint = dict(old.fingerprint)
        return _write(opened.session, staged, _order_of(old, "signed"))


def _newest_of(source: Store) -> tuple[Manifest, Staged]:
    """Read the newest sound generation wholly. One that a trainer retires meanwhile is no damage (rule 20)."""
    view, head = read(source), -1
    while True:
        try:
            choice = choose(source, view)
            if choice.manifest is None:
                raise NotFoundError(
                    "this run has no generation yet", kind="no-generation", hint="save one first", root=source.url
                )
            staged = restage(source, choice.manifest, Arena())
            if not choice.skipped or head == _head_of(view):
                return choice.manifest, staged
        except (CorruptError, NotFoundError):
            if head == _head_of(view):
                raise
        # Retired while it was read, perhaps: then the newest is another one by now. If it is not, it is damaged.
        head, view = _head_of(view), read(source)


def _refuse_what_is_there(view: View, target: Store) -> None:
    if view.head is not None:
        raise UsageError(
            "there is a run there already",
            kind="not-empty",
            hint="name a new directory",
            root=target.url,
            generation=view.head.number,
        )


def _check_target(store: Store, view: View, to: int) -> None:
    if to == _head_of(view):
        raise UsageError(
            "this generation is the newest already",
            kind="already-newest",
            hint=f"milepost ls {store.url} shows the others",
            root=store.url,
            generation=to,
        )
    if to not in view.live and to not in view.unreadable:
        raise no_such_generation(store, to)


def _everything(live: Mapping[int, Summary], _pinned: frozenset[int]) -> frozenset[int]:
    """Keep what is live: how many generations a run wants kept is for its trainer to say."""
    return frozenset(live)


def reset(url: Root, *, take_over: bool = False, key_file: KeyFile = None) -> Reset:
    """Set the run aside, within its root, so that the next start is a fresh one; return where it is now."""
    redact_the_log()
    clock = SystemClock()
    store = open_root(url, clock, key_file)
    read(store)  # a root that holds no run is refused before anything is made there
    with store.guard(wait_s=0.0, take_over=take_over):
        claimed = with_ballast(store, lambda: resetting.begin(store, clock, identity()))
        record = with_ballast(store, lambda: resetting.finish(store, claimed))
    view = read(store)
    events = Events(store, clock, run_id=view.run_id, term=record.term, attempt=attempt())
    events.write("reset", set_aside=record.to, settlement=view.terms.settlements.get(record.term))
    return record


def drop(url: Root, number: int, *, take_over: bool = False, key_file: KeyFile = None) -> None:
    """Give up a generation whose manifest cannot be read: until then nothing as old as it is ever deleted.

    Raises `UsageError` if it can be read, `ConflictError` while the run is being trained.
    """
    store = open_root(url, SystemClock(), key_file)
    check_unreadable(store, read(store), number)  # before the claim: a slip of the finger ends no other writer's
    with _claimed(store, Keep(), take_over=take_over) as opened:
        drop_unreadable(opened.session.store, opened.claimed, number)
        opened.session.events.write("dropped", generation=number)


@contextmanager
def _claimed(url: Root, keep: Keep, *, take_over: bool = False, key_file: KeyFile = None) -> Iterator[Opened]:
    redact_the_log()
    clock: Clock = SystemClock()
    store = open_root(url, clock, key_file)
    with store.guard(wait_s=0.0, take_over=take_over):
        yield open_session(store, clock, keep, {}, incarnation=clock.nonce())
