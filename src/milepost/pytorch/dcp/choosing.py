"""Choose the generation that a reader reads, and have what it says to DCP at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.engine.asked import Asked, asked, instead_of_latest, without_skipped
from milepost.engine.reader import Source
from milepost.engine.reads import Reads
from milepost.errors import CorruptError, NotFoundError
from milepost.lifecycle.recover import Choice, Skipped, choose
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View, read
from milepost.pytorch.dcp.index import Index, read_index
from milepost.pytorch.dcp.naming import INDEX
from milepost.records import ComponentRecord, Manifest
from milepost.store.base import Store

Which: TypeAlias = Literal["latest", "best"] | int


@dataclass(frozen=True, slots=True)
class Chosen:
    """Hold a generation and its index."""

    manifest: Manifest
    index: Index
    skipped: tuple[Skipped, ...] = ()
    not_taken: str = ""
    """Why it is not the one that a supervisor asks for, where it does."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Name the generation that a rank has planned its load for."""

    run_id: str
    number: int
    write_id: str


def seen(chosen: Chosen) -> Seen:
    """Return how a rank names its choice to the coordinator."""
    return Seen(chosen.manifest.run_id, chosen.manifest.number, chosen.manifest.write_id)


def choose_generation(
    store: Store,
    which: Which,
    rejected: Collection[Skipped] = (),
    *,
    step: int | None = None,
    keep: Keep | None = None,
    trust_pickle: bool,
) -> Chosen:
    """Return the generation to load: live, complete and healthy; bytes are verified as they are read.

    What `milepost run` asks for (``MILEPOST_RESUME``) stands for the latest; what it has passed over is not taken.

    Raises `NotFoundError` if there is none, or none of that ``step``; `CorruptError` as `milepost.lifecycle.recover.choose`.
    """
    told = asked()
    while True:
        view = without_skipped(read(store), told)
        wanted = which if step is None else _of_step(store, view, step)
        try:
            choice, not_taken = _choice(store, view, wanted, tuple(rejected), keep, told)
            if choice.manifest is None:
                raise NotFoundError("this run has no generation yet", kind="no-generation", hint="save one first", root=store.url)
            return dataclasses.replace(
                _with_index(store, choice.manifest, choice.skipped, trust_pickle=trust_pickle), not_taken=not_taken
            )
        except (CorruptError, NotFoundError):
            # Retired while we looked, perhaps: then there is a newer head (PROTOCOL rule 20).
            if _head(read(store)) == _head(view):
                raise


def _choice(
    store: Store, view: View, which: Which, rejected: tuple[Skipped, ...], keep: Keep | None, told: Asked
) -> tuple[Choice, str]:
    """Return what is chosen, and why that is not what was asked for in the place of the latest."""
    by, mode = (keep.by, keep.mode) if keep else (None, "max")
    instead = instead_of_latest(store.url, view.run_id, view.head, told) if which == "latest" else None
    not_taken = ""
    if instead is not None:
        try:
            return choose(store, view, instead, full=False, rejected=rejected), ""
        except (NotFoundError, CorruptError) as error:
            not_taken = f"generation {instead} was asked for, and cannot be gone on from: {error}"
    return choose(store, view, which, by=by, mode=mode, full=False, rejected=rejected), not_taken


def numbered(store: Store, wanted: Seen, *, trust_pickle: bool) -> Chosen:
    """Return the generation that the coordinator has chosen. Raises `NotFoundError` or `CorruptError` if it is not there."""
    manifest = load_record(store, layout.manifest(wanted.number), Manifest)
    if (manifest.run_id, manifest.write_id) != (wanted.run_id, wanted.write_id):
        raise CorruptError(
            "under the number that the coordinator has chosen this rank finds another generation",
            kind="other-root",
            hint="all ranks need the same directory: a shared file system, and an absolute path",
            root=store.url,
            generation=wanted.number,
        )
    return _with_index(store, manifest, (), trust_pickle=trust_pickle)


def _with_index(store: Store, manifest: Manifest, skipped: tuple[Skipped, ...], *, trust_pickle: bool) -> Chosen:
    record = manifest.component(INDEX) or ComponentRecord(INDEX, ["none"], ())
    with Reads(store, manifest, threads=1) as reads:
        index = read_index(manifest, Source(reads, record), store.url, trust_pickle=trust_pickle)
    return Chosen(manifest, index, skipped)


def _of_step(store: Store, view: View, step: int) -> int:
    numbers = [number for number, summary in view.line.items() if summary.step == step]
    if not numbers:
        raise NotFoundError(
            "no generation of this run is of this step",
            kind="no-such-step",
            hint=f"milepost ls {store.url} shows the steps there are",
            root=store.url,
            step=step,
        )
    return max(numbers)


def _head(view: View) -> int:
    return view.head.number if view.head else 0
