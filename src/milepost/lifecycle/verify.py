"""Check a run root against its own digests: every byte of every record and blob, and say which generations are sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.lifecycle.blobs import Blobs
from milepost.lifecycle.retain import resumable
from milepost.lifecycle.sealed import GONE, Records, check_records
from milepost.lifecycle.subset import Subset
from milepost.lifecycle.torn import TORN
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View, read
from milepost.records import BlobRecord, Manifest, Summary, is_piece
from milepost.store.base import Store
from milepost.text import plain

_TOLD_ROWS = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """Name one thing that is not as it was written."""

    name: str
    problem: str
    generation: int | None = None
    components: tuple[str, ...] = ()
    """Which components the damage touches. Of a blob: none, where only its header or padding is hit. Else it is unknown."""
    rows: tuple[str, ...] = ()
    """Which rows of logs (``replay.observations[917504:983040]``) it touches, where these components are damaged."""

    def __str__(self) -> str:
        where = f" ({'; '.join((', '.join(self.components), *self.told_rows))})" if self.components else ""
        if not self.components and self.name.startswith(layout.BLOBS):
            where = " (no component, only the file's header)"
        return plain(f"{self.name}{where}: {self.problem}")

    @property
    def told_rows(self) -> tuple[str, ...]:
        """Return the text that names the damaged rows to people; nothing if there are none."""
        if not self.rows:
            return ()
        more = len(self.rows) - _TOLD_ROWS
        return ("rows " + ", ".join(self.rows[:_TOLD_ROWS]) + (f" and {more} more" if more > 0 else ""),)


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
            found.append(problem_of(manifest, index, problem, blobs))
    return tuple(found)


def problem_of(manifest: Manifest, index: int, problem: str, blobs: Blobs) -> Problem:
    """Return what a damaged blob means for a generation: which of its components are hit, and of a log which rows."""
    components, rows = dict[str, None](), list[str]()
    for component, leaf in blobs.damaged(manifest, index):
        components[component] = None
        if is_piece(leaf.path):
            rows.append(leaf.path)
    return Problem(manifest.blobs[index].name, problem, manifest.number, tuple(components), tuple(rows))


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
