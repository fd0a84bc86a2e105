"""Say what a trainer and its writer process tell each other. No pickle: every message is decoded against its type."""

from __future__ import annotations

from typing import Any

import msgspec

from milepost import errors
from milepost.engine.capture import StagedComponent
from milepost.engine.session import Order, Session
from milepost.errors import InternalError, MilepostError, MismatchError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish.generation import Chain
from milepost.records import Difference, Manifest, Provenance
from milepost.store.lock import Holder

BaseKey = tuple[int, str]
"""The number and the write id of a generation: they name its manifest for good."""


class Hello(msgspec.Struct, tag=True):
    """Start a writer. With it come descriptors: the arena, the letters, the trainer (a pidfd), and the lock if there is one."""

    root: str
    key: bytes | None
    run_id: str
    term: int
    attempt: int
    deadline_ms: int
    holder: Holder | None


class Posted(msgspec.Struct, tag=True):
    """Say that a save is staged: from here on it counts. The letter says what it is, see `Letter`."""

    letter_bytes: int
    arena_bytes: int


class Note(msgspec.Struct, tag=True):
    """Say something to whoever reads the trainer's log."""

    level: int
    text: str


class Trying(msgspec.Struct, tag=True):
    """Say which manifest is about to be created: if the writer dies now, it may be there, and it is ours (rule 12)."""

    write_id: str


class Bring(msgspec.Struct, tag=True):
    """Ask for a wave of a state that is larger than the arena."""

    wave: int


class Failure(msgspec.Struct):
    """Hold an error on its way to another process."""

    name: str
    message: str
    kind: str
    hint: str
    facts: dict[str, Any]
    retryable: bool = False
    undone: bool = False
    differences: tuple[Difference, ...] = ()


class Brought(msgspec.Struct, tag=True):
    """Say that a wave is in the arena, or why it is not. With the last one the whole is staged."""

    failure: Failure | None = None


class State(msgspec.Struct):
    """Hold what changes in a session by a save."""

    chain: Chain
    base: BaseKey | None
    manifest: Manifest | None
    """The base, where the other side does not know it."""
    resumed_from: int | None
    manifest_bytes: int
    distrusted: set[str]
    apart: bool
    cramped: bool


class Done(msgspec.Struct, tag=True):
    """Say how a save ended: published if there is no failure."""

    state: State
    failure: Failure | None


class Over(msgspec.Struct, tag=True):
    """Say that what followed a published save is done, too: what it dropped is deleted."""

    state: State


class StagedLog(msgspec.Struct, array_like=True):
    """Say of a log what the writer tells of it. That it is saved, the trainer tells it: its rows are there."""

    component: str
    doubt: str
    rows_added: int


class Letter(msgspec.Struct):
    """Be a whole save but for its bytes, which lie in the arena."""

    components: tuple[StagedComponent, ...]
    logs: list[StagedLog]
    waves: int
    wave_bytes: int
    wave: int
    """The one that is in the arena."""
    order: Order
    state: State
    keep: Keep
    provenance: Provenance
    fingerprint: dict[str, str]
    blob_bytes: int
    compress: bool


FromTrainer = Hello | Posted | Brought
FromWriter = Note | Trying | Bring | Done | Over

encode = msgspec.msgpack.Encoder().encode
decode_letter = msgspec.msgpack.Decoder(Letter).decode
from_trainer = msgspec.msgpack.Decoder(FromTrainer).decode
from_writer = msgspec.msgpack.Decoder(FromWriter).decode


def key_of(manifest: Manifest | None) -> BaseKey | None:
    """Return what names a base for good."""
    return None if manifest is None else (manifest.number, manifest.write_id)


def state_of(session: Session, known: BaseKey | None) -> State:
    """Return what the other side has to know of a session; the base itself only if it is not the one that it knows."""
    key = key_of(session.base)
    return State(
        session.chain,
        key,
        None if key == known else session.base,
        session.resumed_from,
        session.manifest_bytes,
        session.distrusted,
        session.apart,
        session.cramped,
    )


def take_in(session: Session, state: State) -> None:
    """Bring a session to a state that the other side has left it in."""
    for name in Chain.__dataclass_fields__:
        setattr(session.chain, name, getattr(state.chain, name))
    if state.manifest is not None or state.base is None:
        session.base = state.manifest
    session.resumed_from = state.resumed_from
    session.manifest_bytes = state.manifest_bytes
    session.distrust(*state.distrusted)
    session.apart, session.cramped = state.apart, state.cramped


def failure_of(error: BaseException) -> Failure:
    """Return an error as it can be sent."""
    if not isinstance(error, MilepostError) or getattr(errors, type(error).__name__, None) is not type(error):
        error = InternalError(
            "the writer process met an error that it does not know", kind="writer-failed", hint="report it", cause=repr(error)
        )
    facts: dict[str, Any] = msgspec.to_builtins(dict(error.facts), enc_hook=str)
    store = error if isinstance(error, StoreError) else None
    return Failure(
        type(error).__name__,
        error.message,
        error.kind,
        error.hint,
        facts,
        store is not None and store.retryable,
        store is not None and store.undone,
        error.differences if isinstance(error, MismatchError) else (),
    )


def error_of(failure: Failure) -> MilepostError:
    """Return the error that was sent."""
    kind: type[MilepostError] = getattr(errors, failure.name)
    common = {"kind": failure.kind, "hint": failure.hint, **failure.facts}
    if issubclass(kind, StoreError):
        return kind(failure.message, retryable=failure.retryable, undone=failure.undone, **common)
    if issubclass(kind, MismatchError):
        return kind(failure.message, failure.differences, **common)
    return kind(failure.message, **common)
