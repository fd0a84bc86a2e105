"""Cut the power at every moment of a run: record its file operations, and replay every prefix with what a disk may lose.

The store under test takes a `Recorder` for its `Posix`. Each of the `cuts` of its journal is a directory as it may look
after the power came back; write it somewhere, open it, and hold it to what had been promised by then:

>>> from milepost import load, save
>>> from milepost.clock import SystemClock
>>> from milepost.store.local import LocalStore
>>> def act(place, recorder):
...     store = LocalStore(f"{place}/run", SystemClock(), posix=recorder)
...     for step in (1, 2):
...         saved = save(store, {"w": [0.5] * step}, step=step)
...         recorder.note("acknowledged", number=saved.number)
>>> def check(cut, place):
...     for facts in cut.noted("acknowledged")[-1:]:
...         assert len(load(f"{place}/run")["w"]) >= facts["number"]
>>> tally = replay(act, check, limit=40)
>>> tally.lost, tally.acknowledged, tally.operations > 50, tally.cuts
(0, 2, True, 40)

A file operation that does not pass through `Posix` is a blind spot. `record` finds it: with nothing lost, the model of
the disk must equal the real directory byte for byte, or `BlindSpotError` is raised.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from milepost.encode.digest import unseal
from milepost.errors import CorruptError
from milepost.publish import layout
from milepost.store.posix import Posix
from milepost.testing.power_disk import BlindSpotError, Disk, File, Tree, Unit
from milepost.testing.power_recorder import Record, Recorder, found, read_journal

__all__ = ["BlindSpotError", "Cut", "Note", "Recorder", "Tally", "checked", "chosen", "cuts", "record", "replay", "scratch"]

EXHAUSTIVE = 4
"""Up to so many pending changes of names, every subset is tried."""
SAMPLES = 6
"""Beyond that, so many random subsets; each change lost alone and kept alone comes on top."""
FATES = {"none": "are lost", "zeros": "are zeros", "hole": "have a hole", "torn": "are torn in the last write"}
FAILURES_TOLD = 5


@dataclass(frozen=True, slots=True)
class Note:
    """Hold one marker that a recorder was given."""

    name: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """Be what a power cut left: a tree of files, and what had been promised before."""

    position: int
    """How many records the journal had."""
    after: str
    """The last of them."""
    lost: str
    """What of the pending changes was lost, in words."""
    tree: Tree
    notes: tuple[Note, ...]
    events: tuple[Mapping[str, Any], ...]
    """The lines that had been written to event logs of milepost by then, whether the power cut took them or not."""

    def __str__(self) -> str:
        return f"power cut after record {self.position} ({self.after}): {self.lost}"

    def noted(self, *names: str) -> list[Mapping[str, Any]]:
        """Return the facts of the notes of these names, in order."""
        return [note.facts for note in self.notes if note.name in names]

    def write_to(self, place: str | os.PathLike[str]) -> None:
        """Make the tree a real directory, which must not exist."""
        place = os.fspath(place)
        os.mkdir(place)
        for directory in sorted(self.tree.directories):
            os.mkdir(f"{place}/{directory}")
        for name, data in self.tree.files.items():
            descriptor = os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)


Act: TypeAlias = Callable[[Path, Recorder], object]
"""Work below a place with a recorder, and note what is promised."""
Check: TypeAlias = Callable[[Cut, Path], object]
"""Hold what lies at a place to what a cut says was promised; any exception is a failure."""


def record(place: Path, journal: Path, act: Act, inner: Posix | None = None) -> list[Record]:
    """Run ``act`` and return what it did. Raises `BlindSpotError` if anything below ``place`` was done behind the recorder."""
    act(place, Recorder(place, journal, inner))
    records = read_journal(journal)
    disk = Disk()
    for each in records:
        disk.apply(each)
    _compare(disk.now(), place)
    return records


def _compare(model: Tree, place: Path) -> None:
    there = [each for each in found(os.path.abspath(place)) if each.path]
    directories = {each.path for each in there if each.data is None}
    files = {each.path: each.data for each in there if each.data is not None}
    odd = sorted(directories ^ model.directories)
    odd += sorted(name for name in files.keys() | model.files.keys() if files.get(name) != model.files.get(name))
    if odd:
        raise BlindSpotError(f"files were changed behind the recorder's back: {', '.join(odd)}")


def cuts(
    records: Sequence[Record], *, seed: int = 0, exhaustive: int = EXHAUSTIVE, samples: int = SAMPLES, notes: Sequence[Note] = ()
) -> Iterator[Cut]:
    """Yield what power cuts at every moment may leave, each state once for the same promises; ``notes`` came before all.

    At each moment: all that is pending is lost; all is kept; names without bytes, with zeros, with torn ones; bytes without
    names; every subset of the names if they are few, else each lost alone, each kept alone, and random ones; random bytes.
    """
    disk, seen = Disk(), set()
    noted, events, logs = list(notes), [], _EventLogs()
    for position, each in enumerate(records, 1):
        disk.apply(each)
        if each.name == "note":
            noted.append(Note(each.path, each.facts))
        events += logs.lines(each)
        if each.name == "found":
            continue
        for lost, tree in _left(disk, seed + position, exhaustive, samples):
            state = (len(noted), len(events), hash(tree.directories), hash(frozenset(tree.files.items())))
            if state not in seen:
                seen.add(state)
                yield Cut(position, str(each), lost, tree, tuple(noted), tuple(events))


def _left(disk: Disk, seed: int, exhaustive: int, samples: int) -> Iterator[tuple[str, Tree]]:
    """Yield what may be left of a disk, and in words what is lost."""
    units, dirty = tuple(disk.pending), tuple(disk.dirty)

    def tree(kept: Sequence[Unit], fate: str | Mapping[File, str]) -> Tree:
        if isinstance(fate, str):
            return disk.tree(frozenset(kept), lambda file: file.content(fate) if file.pending else file.durable)
        return disk.tree(frozenset(kept), lambda file: file.content(fate.get(file, "all")))

    yield "all that was pending is lost", tree((), "none")
    yield "nothing is lost", tree(units, "all")
    if dirty:
        for fate, words in FATES.items():
            yield f"bytes that were not synced {words}", tree(units, fate)
        yield "names that were not synced are lost", tree((), "all")
    dice = np.random.default_rng(seed)
    some_bytes = itertools.repeat(units, samples if dirty else 0)
    for kept in itertools.chain(some_bytes, _subsets(units, dice, exhaustive, samples)):
        gone = ", ".join(unit.label for unit in units if unit not in kept)
        for fate in ("none", "all") if len(units) <= exhaustive else ():
            yield f"lost: {gone or 'no name'}; bytes that were not synced: {fate}", tree(kept, fate)
        fates = {file: str(dice.choice(file.fates())) for file in dirty}
        yield f"lost: {gone or 'no name'}; bytes that were not synced: {', '.join(fates.values())}", tree(kept, fates)


def _subsets(units: Sequence[Unit], dice: np.random.Generator, exhaustive: int, samples: int) -> Iterator[tuple[Unit, ...]]:
    """Yield which changes of names are kept."""
    if len(units) <= exhaustive:
        for size in range(len(units) + 1):
            yield from itertools.combinations(units, size)
        return
    for one in units:
        yield tuple(unit for unit in units if unit is not one)
        yield (one,)
    for _ in range(samples):
        yield tuple(itertools.compress(units, dice.random(len(units)) < dice.random()))


class _EventLogs:
    """Read the event lines out of what is written to event logs."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    def lines(self, written: Record) -> list[Mapping[str, Any]]:
        if written.path:
            is_log = f"/{written.path}".rpartition("/")[0].endswith(f"/{layout.EVENTS.rstrip('/')}")
            (self._inodes.add if is_log else self._inodes.discard)(written.inode)
        if written.inode not in self._inodes or written.name != "write" or written.data is None:
            return []
        try:
            event: Mapping[str, Any] = msgspec.json.decode(unseal(written.data, "an event"))
        except CorruptError:  # cut short by a full disk: it was taken back
            return []
        return [event]


@dataclass(frozen=True, slots=True)
class Tally:
    """Count what was tried."""

    operations: int = 0
    cuts: int = 0
    acknowledged: int = 0
    """Promises noted as ``acknowledged`` while it was recorded."""
    lost: int = 0
    """Cuts after which the check failed."""
    failures: tuple[str, ...] = ()
    """The first of them, told."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.operations + other.operations,
            self.cuts + other.cuts,
            self.acknowledged + other.acknowledged,
            self.lost + other.lost,
            (self.failures + other.failures)[:FAILURES_TOLD],
        )


def replay(
    act: Act,
    check: Check,
    *,
    prepare: Callable[[Path], object] | None = None,
    inner: Posix | None = None,
    seed: int = 0,
    limit: int | None = None,
    lost_at_most: int | None = None,
    samples: int = SAMPLES,
    only: Callable[[Cut], bool] = lambda _: True,
) -> Tally:
    """Record ``act``, cut the power everywhere, and ``check`` what each cut leaves.

    ``prepare`` makes what lies there, durably, before. With ``limit`` a seeded choice of so many cuts is checked, of those
    that ``only`` lets pass; it ends early once ``lost_at_most`` checks have failed.
    """
    with scratch() as home:
        place = home / "recorded"
        place.mkdir()
        if prepare is not None:
            prepare(place)
        records = record(place, home / "journal", act, inner)
        done = [each for each in records if each.name not in ("found", "note")]
        tally = Tally(len(done), acknowledged=sum(each.name == "note" and each.path == "acknowledged" for each in records))
        for cut in chosen(filter(only, cuts(records, seed=seed, samples=samples)), seed, limit):
            tally += checked(cut, check, home / "cut")
            if lost_at_most is not None and tally.lost >= lost_at_most:
                break
        return tally


def chosen(every: Iterator[Cut], seed: int, limit: int | None) -> Iterator[Cut]:
    """Yield all cuts in order; or a seeded choice of ``limit`` of them in any order, so that what is wrong shows soon."""
    if limit is None:
        yield from every
        return
    all_of_them = list(every)
    for index in np.random.default_rng(seed).permutation(len(all_of_them))[:limit]:
        yield all_of_them[index]


def checked(cut: Cut, check: Check, place: Path) -> Tally:
    """Write one cut to ``place``, check it there, and take it away again."""
    cut.write_to(place)
    try:
        check(cut, place)
    except Exception:  # noqa: BLE001 - whatever it is, after this cut something promised did not hold
        return Tally(cuts=1, lost=1, failures=(f"{cut}\n{traceback.format_exc()}",))
    finally:
        shutil.rmtree(place)
    return Tally(cuts=1)


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a directory for the time being, in memory where there is one: nothing here depends on the medium."""
    memory = "/dev/shm"  # noqa: S108 - what is made there has a name of its own
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK)
    made = Path(tempfile.mkdtemp(prefix="milepost-power-", dir=memory if usable else None))
    try:
        yield made
    finally:
        shutil.rmtree(made)
