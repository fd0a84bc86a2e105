"""Read the data of a run again, little by little, the part that was not looked at for longest first, and find what rots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.errors import CorruptError, NotFoundError, StoreError, UsageError
from milepost.lifecycle.blobs import PIECE_BYTES, Blobs
from milepost.lifecycle.verify import Problem, blobs_of, problem_of
from milepost.publish import layout
from milepost.publish.manifest import encode, load_record
from milepost.publish.signed import refuse_unsigned
from milepost.publish.view import View, read
from milepost.records import BlobRecord, Manifest, Scrubbed
from milepost.store.base import Store

RATE_BYTES_S = 50 << 20
"""How fast a scrub reads unless it is told otherwise: a disk that trains at gigabytes a second does not feel it."""
_REMEMBER_NS = 10_000_000_000
_BURST_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """Say what a scrub read, and what it found."""

    root: str
    blobs_read: int
    read_bytes: int
    recent: int
    """How many blobs were left out, since they had been read not long ago."""
    problems: tuple[Problem, ...]
    """What is damaged, once for each generation that stands on it."""
    not_remembered: str = ""
    """Why the next scrub will begin from the start: the root could not be written to, say."""

    @property
    def ok(self) -> bool:
        """Return whether nothing was found."""
        return not self.problems


class Scrub:
    """Know what is due to be read, and read it. Needs no claim, may run beside training, and writes nothing but its record."""

    def __init__(self, store: Store, clock: Clock, *, older_than_s: float = 0.0, trust_writes: bool = False) -> None:
        """Look what is due: all that was not found sound within the last ``older_than_s`` seconds.

        With ``trust_writes`` a blob counts as found sound when it was written.
        """
        self._store = store
        self._clock = clock
        self._view = read(store)
        self._checked_ns = _recorded(store, self._view.run_id)
        now_ns = clock.wall_ns()
        written_ns = _written(self._view) if trust_writes else {}
        blobs = blobs_of(self._view.live.values())
        known_ns = {blob.name: max(self._checked_ns.get(blob.name, 0), written_ns.get(blob.name, 0)) for blob in blobs}
        # A time to come is that of a clock which was set back since, and proves nothing.
        known_ns = {name: at if at <= now_ns else 0 for name, at in known_ns.items()}
        due = [blob for blob in blobs if now_ns - known_ns[blob.name] >= older_than_s * 1e9]
        self.due: list[BlobRecord] = sorted(due, key=lambda blob: (known_ns[blob.name], blob.name))
        self._recent = len(blobs) - len(due)
        self._known = {blob.name for blob in blobs}
        self._saved_ns = clock.monotonic_ns()
        self._read: list[BlobRecord] = []
        self._not_remembered = ""

    @property
    def due_bytes(self) -> int:
        """Return how much there is to read."""
        return sum(blob.size_bytes for blob in self.due)

    def run(
        self, each: Callable[[int], None], found: Callable[[Problem], None] | None = None, *, piece_bytes: int = PIECE_BYTES
    ) -> ScrubReport:
        """Read what is due; call ``each`` with the bytes of every piece, and ``found`` with every problem as it is found.

        What ``each`` raises ends the scrub, and the next one goes on from there. Raises `StoreError` where a read fails:
        that is no damage.
        """
        blobs = Blobs(self._store, full=True, progress=each, piece_bytes=piece_bytes, from_medium=True)
        problems: list[Problem] = []
        try:
            for blob in self.due:
                problem = blobs.problem(blob)
                for one in self._touched(blob, problem, blobs) if problem else ():
                    problems.append(one)
                    if found:
                        found(one)
                self._note(blob, sound=problem is None)
        finally:
            self._remember()
        return ScrubReport(
            self._store.url, len(self._read), blobs.read_bytes, self._recent, tuple(problems), self._not_remembered
        )

    def _touched(self, blob: BlobRecord, problem: str, blobs: Blobs) -> Iterator[Problem]:
        # Judged anew: what has been retired since the scrub began is gone, and that is no damage (rule 20).
        for number, summary in sorted(read(self._store).live.items()):
            if blob not in summary.blobs:
                continue
            manifest = _manifest(self._store, number)
            if manifest is None:
                yield Problem(blob.name, problem, number)
            else:
                yield problem_of(manifest, manifest.blobs.index(blob), problem, blobs)

    def _note(self, blob: BlobRecord, *, sound: bool) -> None:
        self._read.append(blob)
        if sound:
            self._checked_ns[blob.name] = self._clock.wall_ns()
        else:
            self._checked_ns.pop(blob.name, None)  # the next scrub begins with what was damaged
        if self._clock.monotonic_ns() - self._saved_ns >= _REMEMBER_NS:
            self._remember()

    def _remember(self) -> None:
        """Write down what was read when, over what another scrub may have written meanwhile."""
        self._saved_ns = self._clock.monotonic_ns()
        read_now = {blob.name for blob in self._read}
        if not read_now:
            return
        mine = {name: at for name, at in self._checked_ns.items() if name in self._known}
        theirs = {
            name: at
            for name, at in _recorded(self._store, self._view.run_id).items()
            if name in self._known and name not in read_now
        }
        try:
            refuse_unsigned(self._store)
            self._store.replace(layout.SCRUB, encode(Scrubbed(self._view.run_id, mine | theirs)), durable=False)
        except (StoreError, UsageError) as error:
            self._not_remembered = error.message


class Pace:
    """Let bytes through no faster than a rate."""

    def __init__(self, bytes_s: float, clock: Clock, wait: Callable[[float], object]) -> None:
        self._bytes_s = bytes_s
        self._clock = clock
        self._wait = wait
        self._due_ns = clock.monotonic_ns()

    def spend(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` more may have been read."""
        now_ns = self._clock.monotonic_ns()
        # What was not used up is lost but for a second's worth: after a pause nothing is read in one rush.
        self._due_ns = max(self._due_ns, now_ns - _BURST_NS) + round(size_bytes / self._bytes_s * 1e9)
        if self._due_ns > now_ns:
            self._wait((self._due_ns - now_ns) / 1e9)

    @property
    def piece_bytes(self) -> int:
        """Return how much to read at once, so that the reading is even."""
        return max(4096, min(PIECE_BYTES, int(self._bytes_s / 8)))


def _recorded(store: Store, run_id: str) -> dict[str, int]:
    try:
        record = load_record(store, layout.SCRUB, Scrubbed)
    except (NotFoundError, CorruptError):
        return {}
    return dict(record.checked_ns) if record.run_id == run_id else {}


def _written(view: View) -> dict[str, int]:
    """Return when a blob was written, by its name, where the generation that it was written for is still there to say.

    Of a blob that it shares a generation says nothing: where saves are frequent, the oldest that is kept is always young.
    """
    return {
        blob.name: summary.commit_timestamp
        for number, summary in view.live.items()
        for blob in summary.blobs
        if layout.blob_number(blob.name) == number
    }


def _manifest(store: Store, number: int) -> Manifest | None:
    try:
        return load_record(store, layout.manifest(number), Manifest)
    except (NotFoundError, CorruptError):
        return None
