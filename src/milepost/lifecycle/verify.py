"""Check a run root against its own digests: every byte of every record and blob, and say which generations are sound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from milepost.encode.digest import Digest
from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.lifecycle.retain import resumable
from milepost.lifecycle.sealed import GONE, Records, check_records
from milepost.lifecycle.subset import Subset
from milepost.lifecycle.torn import TORN
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View, read
from milepost.records import BlobRecord, LeafRecord, Manifest, Summary
from milepost.store.base import Store
from milepost.text import plain

PIECE_BYTES = 8 << 20
"""How much is read at once: the memory that a check needs, whatever the size of the run."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Name one thing that is not as it was written."""

    name: str
    problem: str
    generation: int | None = None
    components: tuple[str, ...] = ()
    """Which components the damage touches. Of a blob: none, where only its header or padding is hit. Else it is unknown."""

    def __str__(self) -> str:
        where = f" ({', '.join(self.components)})" if self.components else ""
        if not self.components and self.name.startswith(layout.BLOBS):
            where = " (no component, only the file's header)"
        return plain(f"{self.name}{where}: {self.problem}")


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Say how one generation is."""

    number: int
    state: str
    """``valid``, ``damaged``, ``unreadable``, ``void``, ``retired`` (its deletion is due), ``foreign`` or ``half deleted``: a
    manifest that cannot be read may have dropped it (rule 3a), and that is no new damage. ``unread``: the disk or the network
    failed, and nothing is known."""
    step: int | None = None
    problems: tuple[Problem, ...] = ()
    sound: tuple[str, ...] = ()
    """The components of which every byte is as it was written, as far as it was read."""
    damaged: tuple[str, ...] = ()
    """The components that the damage touches. A generation may be damaged where none of them is: in a blob's header."""


@dataclass(frozen=True, slots=True)
class Report:
    """Say how a run root is."""

    root: str
    generations: tuple[GenerationReport, ...]
    problems: tuple[Problem, ...]
    """All of them, those of generations included."""
    resume_from: int | None
    """The generation which resume would take; None if there is none."""
    checked_bytes: int
    undecided: bool
    data_bytes: int = 0
    """The size of all the blobs looked at, each once."""
    data_read_bytes: int = 0
    """How much of that was read; of the rest only the sizes were checked."""
    subset: Subset | None = None
    lost: int = 0
    """The newer generation that ``LATEST`` tells of and that is not there; 0 if there is none."""
    torn: tuple[Problem, ...] = ()
    """Files that are never synced and of which a power cut took a part. That is no damage: nothing stands on them."""
    resume_without: tuple[str, ...] = ()
    """The damaged components that a resume would leave as they are in the live state: no generation is whole."""

    @property
    def ok(self) -> bool:
        """Return whether nothing at all was found."""
        return not self.problems

    @property
    def unread(self) -> tuple[int, ...]:
        """Return the generations of which nothing is known, since the disk or the network failed."""
        return tuple(one.number for one in self.generations if one.state == "unread")


def verify(
    store: Store,
    numbers: Iterable[int] | None = None,
    *,
    full: bool = True,
    subset: Subset | None = None,
    spare: Callable[[str], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check a run root. Changes nothing, needs no claim, and may run beside training.

    With ``full`` every byte is read; without it only records and the sizes of blobs; with ``subset`` this part of the blobs
    is read. ``numbers`` restricts the check to these generations. ``spare`` says which components a resume can do without,
    where no generation is whole. Raises `NotFoundError` if the root holds no run or a wanted generation does not exist.
    """
    view = read(store)
    wanted = None if numbers is None else frozenset(numbers)
    blobs = blobs_of(view.live[number] for number in view.live if wanted is None or number in wanted)
    chosen = subset.choose(blobs) if subset else None
    checks = Blobs(store, full=full, chosen=chosen, progress=progress)
    reports = [_report(store, view, number, checks) for number in _known(view) if wanted is None or number in wanted]
    missing = (wanted or frozenset()) - {report.number for report in reports}
    if missing:
        raise no_such_generation(store, min(missing))
    records = check_records(store, checks.count) if wanted is None else Records()
    others = [Problem(name, problem) for name, problem in records.damaged]
    if wanted is None and view.lost:
        others.append(Problem(layout.manifest(view.lost), GONE, view.lost))
    taken, without = _taken(view, reports, spare)
    return Report(
        store.url,
        tuple(reports),
        (*others, *(problem for report in reports for problem in report.problems)),
        taken,
        checks.read_bytes,
        view.undecided,
        sum(blob.size_bytes for blob in checks.looked_at),
        sum(blob.size_bytes for blob in checks.looked_at if checks.reads(blob)),
        subset,
        view.lost if wanted is None else 0,
        tuple(Problem(name, TORN) for name in records.torn),
        without,
    )


def _taken(
    view: View, reports: Iterable[GenerationReport], spare: Callable[[str], bool] | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return what a resume would take, and the damaged components that it would go on without."""
    state = {report.number: report.state for report in reports}
    # Damage that hits no component, but a file's header, costs nothing.
    complete = {one.number for one in reports if spare is not None and one.state == "damaged" and not one.damaged}
    whole = resumable(view, complete | {number for number in state if state[number] in ("valid", "unread")})
    if whole is not None and state[whole] == "unread":
        return None, ()  # a resume stops at it: what cannot be read now is not passed over for something older
    if whole is not None or spare is None:
        return whole, ()
    partly = {one.number: one.damaged for one in reports if one.state == "damaged" and all(map(spare, one.damaged))}
    taken = resumable(view, partly)
    return taken, partly[taken] if taken is not None else ()


def blobs_of(generations: Iterable[Summary]) -> list[BlobRecord]:
    """Return the blobs that these generations stand on, each once."""
    return list({blob.name: blob for summary in generations for blob in summary.blobs}.values())


def no_such_generation(store: Store, number: int) -> NotFoundError:
    """Return the error for a generation that is not there."""
    return NotFoundError(
        "there is no such generation",
        kind="no-such-generation",
        hint=f"milepost ls {store.url} shows those there are",
        root=store.url,
        generation=number,
    )


def check_generation(manifest: Manifest, blobs: Blobs) -> tuple[Problem, ...]:
    """Return what is wrong with a generation's blobs."""
    found: list[Problem] = []
    for index, blob in enumerate(manifest.blobs):
        problem = blobs.problem(blob)
        if problem:
            found.append(Problem(blob.name, problem, manifest.number, blobs.touched(manifest, index)))
    return tuple(found)


class Blobs:
    """Check blobs, each once however many generations share it, in bounded memory."""

    def __init__(
        self,
        store: Store,
        *,
        full: bool,
        chosen: Collection[str] | None = None,
        progress: Callable[[int], None] | None = None,
        piece_bytes: int = PIECE_BYTES,
        from_medium: bool = False,
    ) -> None:
        """Read in pieces of ``piece_bytes``; ``from_medium`` asks for what is on the disk and not in this machine's memory."""
        self._store = store
        self._full = full
        self._chosen = chosen
        self._progress = progress
        self._piece_bytes = piece_bytes
        self._from_medium = from_medium
        self._known: dict[str, tuple[BlobRecord, str | None]] = {}
        self.read_bytes = 0

    @property
    def looked_at(self) -> list[BlobRecord]:
        """Return the blobs that were asked about."""
        return [blob for blob, _ in self._known.values()]

    def reads(self, blob: BlobRecord) -> bool:
        """Return whether the bytes of ``blob`` are read, and not only its size is checked."""
        return self._full and (self._chosen is None or blob.name in self._chosen)

    def count(self, size_bytes: int) -> None:
        """Note that bytes were checked."""
        self.read_bytes += size_bytes
        if self._progress:
            self._progress(size_bytes)

    def problem(self, blob: BlobRecord) -> str | None:
        """Return what is wrong with ``blob``, or None."""
        known = self._known.get(blob.name)
        if known is None or known[0] != blob:
            # A flaky read is not damage: what looks damaged is read once more before it is believed.
            problem = self._look(blob, again=self._from_medium) and self._look(blob, again=True)
            known = self._known[blob.name] = (blob, problem)
        return known[1]

    def _look(self, blob: BlobRecord, *, again: bool) -> str | None:
        if again:
            # Read from the same memory it would be the same bad bytes once more.
            self._store.drop_cached(blob.name)
        try:
            size, digest = self._measure(blob)
        except NotFoundError:
            return GONE
        if size != blob.size_bytes:
            return (
                f"it is {'longer' if size > blob.size_bytes else 'shorter'} than the {blob.size_bytes:,} bytes that were written"
            )
        if digest is not None and digest != blob.digest:
            return "its digest is not the one that was written"
        return None

    def _measure(self, blob: BlobRecord) -> tuple[int, str | None]:
        if not self.reads(blob):
            # One byte beyond the end tells a file that grew from one that is whole.
            probe = bytearray(2)
            start = max(blob.size_bytes - 1, 0)
            return start + self._store.read_into(blob.name, start, memoryview(probe)), None
        # One byte more than there should be, so that a file that grew is told from one that is whole.
        digest, size = Digest.like(blob.digest), 0
        for piece in self._pieces(blob.name, 0, blob.size_bytes + 1):
            digest.update(piece)
            size += len(piece)
            self.count(len(piece))
        return size, digest.hex()

    def _pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Read bytes ``[start, stop)``, or what there is of them, piece by piece into one buffer."""
        buffer = memoryview(bytearray(min(self._piece_bytes, stop - start)))
        while True:
            piece = buffer[: stop - start]
            got = self._store.read_into(name, start, piece)
            yield piece[:got]
            start += got
            if got < len(piece) or start == stop:
                return

    def touched(self, manifest: Manifest, blob: int) -> tuple[str, ...]:
        """Return which components have a damaged leaf in this blob."""
        found = [
            component.name
            for component in manifest.components
            if any(self._bad(manifest, leaf, blob) for leaf in component.leaves)
        ]
        return tuple(found)

    def _bad(self, manifest: Manifest, leaf: LeafRecord, blob: int) -> bool:
        return leaf.blob == blob and not self.is_sound(manifest, leaf)

    def is_sound(self, manifest: Manifest, leaf: LeafRecord) -> bool:
        """Return whether a leaf's bytes are those that were saved; what looks damaged is read once more."""
        if self._fits(manifest, leaf):
            return True
        self._store.drop_cached(manifest.blobs[leaf.blob].name)
        return self._fits(manifest, leaf)

    def _fits(self, manifest: Manifest, leaf: LeafRecord) -> bool:
        try:
            digest = Digest.like(leaf.digest)
            for piece in self._pieces(manifest.blobs[leaf.blob].name, leaf.start, leaf.stop):
                digest.update(piece)
        except NotFoundError:
            return False
        return digest.hex() == leaf.digest


def _known(view: View) -> list[int]:
    listing = view.listing
    return sorted({*listing.summaries, *listing.unreadable, *listing.misnamed})


def _report(store: Store, view: View, number: int, blobs: Blobs) -> GenerationReport:
    name = layout.manifest(number)
    if number in view.foreign:
        return GenerationReport(number, "foreign")
    if number not in view.listing.summaries:
        why = view.unreadable.get(number) or "it cannot be read, and belongs to a run that was set aside"
        return GenerationReport(number, "unreadable", None, (Problem(name, why, number),))
    step = view.listing.summaries[number].step
    if number not in view.live:
        return GenerationReport(number, "void" if number in view.void else "retired", step)
    try:
        return _report_live(store, view, number, blobs)
    except StoreError as error:
        # It says nothing of the others, and an operator asks on a bad day: one sick file must not hide what is sound.
        where = str(error.facts.get("name", name))
        return GenerationReport(number, "unread", step, (Problem(where, f"it cannot be read now: {error.message}", number),))


def _report_live(store: Store, view: View, number: int, blobs: Blobs) -> GenerationReport:
    name, step = layout.manifest(number), view.live[number].step
    try:
        manifest = load_record(store, name, Manifest)
    except NotFoundError:
        return GenerationReport(number, "retired", step)
    except CorruptError as error:
        return GenerationReport(number, "unreadable", step, (Problem(name, error.message, number),))
    problems = check_generation(manifest, blobs)
    if any(problem.problem == GONE for problem in problems):
        if number not in read(store).live:
            # A blob vanished while we looked: a newer head has retired the generation meanwhile, that is no damage (rule 20).
            return GenerationReport(number, "retired", step)
        if number <= view.unsure:
            return GenerationReport(number, "half deleted", step)
    hit = {name for problem in problems for name in problem.components}
    return GenerationReport(
        number,
        "damaged" if problems else "valid",
        step,
        problems,
        tuple(component.name for component in manifest.components if component.name not in hit),
        tuple(component.name for component in manifest.components if component.name in hit),
    )
