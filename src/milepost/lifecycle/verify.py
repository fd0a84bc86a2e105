"""Check a run root against its own digests: every byte of every record and blob, and say which generations are sound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from milepost.encode.digest import Digest, unseal, xxh3
from milepost.errors import CorruptError, NotFoundError
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import View, read
from milepost.records import BlobRecord, LeafRecord, Manifest
from milepost.store.base import Store

PIECE_BYTES = 8 << 20
"""How much is read at once: the memory that a check needs, whatever the size of the run."""

GONE = "it is gone"


@dataclass(frozen=True, slots=True)
class Problem:
    """Name one thing that is not as it was written."""

    name: str
    problem: str
    generation: int | None = None
    components: tuple[str, ...] = ()
    """Which components the damage touches; empty where it touches none, or where that is unknown."""

    def __str__(self) -> str:
        where = f" ({', '.join(self.components)})" if self.components else ""
        return f"{self.name}{where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Say how one generation is."""

    number: int
    state: str
    """``valid``, ``damaged``, ``unreadable``, ``void``, ``retired`` (its deletion is due), ``foreign`` or ``half deleted``: a
    manifest that cannot be read may have dropped it (rule 3a), and that is no new damage."""
    step: int | None = None
    problems: tuple[Problem, ...] = ()


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

    @property
    def ok(self) -> bool:
        """Return whether nothing at all was found."""
        return not self.problems


def verify(
    store: Store, numbers: Iterable[int] | None = None, *, full: bool = True, progress: Callable[[int], None] | None = None
) -> Report:
    """Check a run root. Changes nothing, needs no claim, and may run beside training.

    With ``full`` every byte is read; without it only records and the sizes of blobs. ``numbers`` restricts the check to
    these generations. Raises `NotFoundError` if the root holds no run or a wanted generation does not exist.
    """
    view = read(store)
    checks = Blobs(store, full=full, progress=progress)
    wanted = None if numbers is None else frozenset(numbers)
    reports = [_report(store, view, number, checks) for number in _known(view) if wanted is None or number in wanted]
    missing = (wanted or frozenset()) - {report.number for report in reports}
    if missing:
        raise no_such_generation(store, min(missing))
    others = [] if wanted is not None else _other_records(store, checks.count)
    if wanted is None and view.lost:
        others.append(Problem(layout.manifest(view.lost), GONE, view.lost))
    sound = {report.number for report in reports if report.state == "valid"}
    return Report(
        store.url,
        tuple(reports),
        (*others, *(problem for report in reports for problem in report.problems)),
        resumable(view, sound),
        checks.read_bytes,
        view.undecided,
    )


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

    def __init__(self, store: Store, *, full: bool, progress: Callable[[int], None] | None = None) -> None:
        self._store = store
        self._full = full
        self._progress = progress
        self._known: dict[str, tuple[BlobRecord, str | None]] = {}
        self.read_bytes = 0

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
            problem = self._look(blob) and self._look(blob)
            known = self._known[blob.name] = (blob, problem)
        return known[1]

    def _look(self, blob: BlobRecord) -> str | None:
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
        if not self._full:
            # One byte beyond the end tells a file that grew from one that is whole.
            probe = bytearray(2)
            start = max(blob.size_bytes - 1, 0)
            return start + self._store.read_into(blob.name, start, memoryview(probe)), None
        piece, digest, position = memoryview(bytearray(min(PIECE_BYTES, blob.size_bytes + 1))), Digest(), 0
        while position <= blob.size_bytes:
            got = self._store.read_into(blob.name, position, piece)
            digest.update(piece[:got])
            position += got
            self.count(got)
            if got < len(piece):
                break
        return position, digest.hex()

    def touched(self, manifest: Manifest, blob: int) -> tuple[str, ...]:
        """Return which components have a damaged leaf in this blob."""
        found = [
            component.name
            for component in manifest.components
            if any(self._bad(manifest, leaf, blob) for leaf in component.leaves)
        ]
        return tuple(found)

    def _bad(self, manifest: Manifest, leaf: LeafRecord, blob: int) -> bool:
        if leaf.blob != blob:
            return False
        try:
            return xxh3(self._store.read(manifest.blobs[blob].name, leaf.start, leaf.stop)) != leaf.digest
        except NotFoundError:
            return True


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
        manifest = decode_manifest(store.read(name), name)
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
    return GenerationReport(number, "damaged" if problems else "valid", step, problems)


def resumable(view: View, sound: Collection[int]) -> int | None:
    """Return which of the live generations ``sound`` a resume would take: the newest complete and healthy one; None if none."""
    line = view.line
    healthy = [number for number in sound if number in line and line[number].healthy and not _barred(view, number)]
    complete = [number for number in healthy if view.live[number].complete]
    return max(complete or healthy, default=None)


def _barred(view: View, number: int) -> bool:
    mark = view.marks.get(number)
    return mark is not None and mark.kind == "kills-loader"


def _other_records(store: Store, count: Callable[[int], None]) -> list[Problem]:
    """Check every sealed record that is not a manifest, and the ballast."""
    found: list[Problem] = []
    names = [entry.name for directory in layout.DIRECTORIES for entry in store.list(directory)]
    singles = [layout.RUN, layout.LATEST, layout.PROGRESS, layout.LOCK, layout.BALLAST]
    for name in (*singles, *names):
        if name.startswith((layout.BLOBS, layout.GENERATIONS)):
            continue
        try:
            data = store.read(name)
        except NotFoundError:
            if name == layout.RUN:
                found.append(Problem(name, GONE))
            continue
        count(len(data))
        problem = _record_problem(name, data)
        if problem:
            found.append(Problem(name, problem))
    return found


def _record_problem(name: str, data: bytes) -> str | None:
    if name == layout.BALLAST:
        return "it is not all zeros" if data.strip(b"\0") else None
    if name == layout.LOCK and not data:
        return None
    records = data.splitlines(keepends=True) if name.startswith(layout.EVENTS) else [data]
    for line, record in enumerate(records, 1):
        try:
            unseal(record, name)
        except CorruptError as error:
            return f"line {line}: {error.message}" if len(records) > 1 else error.message
    return None
