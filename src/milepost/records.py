"""Hold the frozen data every layer passes on. No behaviour but printing; no imports but the standard library and `plain`.

Records that are stored are JSON objects with these very field names; docs/FORMAT.md explains them. Numbers that JSON
would bend (floats, integers beyond 64 bits) are stored as text, see `Metric` and the tree nodes of ``state/tree.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from milepost.text import plain

FORMAT_VERSION = 2
"""The version of the bytes on disk. It moves only with a decision record."""

Exactness: TypeAlias = Literal["exact", "approximate", "not captured"]
FaultKind: TypeAlias = Literal["none", "soft", "hard", "data"]
"""What kind of fault a start comes after: see `milepost.lifecycle.faults`."""
Node: TypeAlias = list[Any]
"""One node of a component's stored tree, see ``state/tree.py``: ``[tag, ...]``."""


@dataclass(frozen=True, slots=True)
class Version:
    """Identify weights or a checkpoint. Order is not read from it: order is (term, generation)."""

    run_id: str
    step: int
    commit_timestamp: int
    """Nanoseconds since the epoch, and always larger than the one before it in the run."""


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """Say what one array is, without its bytes."""

    kind: str
    """Which kind of object it comes back as: ``numpy``, ``numpy-scalar``, ``bytes``, ``torch``, ``opaque`` ..."""
    dtype: str
    """The dtype's own name (``float32``, ``bfloat16``, ``<U5``, ``datetime64[ns]``); byte order is always the saved one."""
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class LeafRecord:
    """Say where the bytes of one leaf lie: bytes ``[start, stop)`` of the raw file of ``blobs[blob]`` of its manifest."""

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    blob: int
    start: int
    stop: int
    digest: str
    """XXH3-128 of the leaf's bytes, 32 hexadecimal digits; ``sha256:`` and 64 of them in a signed run."""

    @property
    def spec(self) -> LeafSpec:
        """Return what the leaf is."""
        return LeafSpec(self.kind, self.dtype, self.shape)

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the leaf has."""
        return self.stop - self.start


_ROWS = re.compile(r"\[\d+:\d+\]\Z", re.ASCII)


def is_piece(path: str) -> bool:
    """Return whether a leaf is a piece of a log: its path ends in the rows that it holds."""
    return _ROWS.search(path) is not None


def log_of(path: str) -> str:
    """Return the path of the log that a leaf is a piece of; of any other leaf its own."""
    return _ROWS.sub("", path)


@dataclass(frozen=True, slots=True)
class BlobRecord:
    """Name one blob and say how it must look: all its bytes, header included."""

    name: str
    size_bytes: int
    digest: str
    """XXH3-128 of the whole file, 32 hexadecimal digits; ``sha256:`` and 64 of them in a signed run."""
    frames: tuple[tuple[int, int], ...] = ()
    """Of a compressed blob (raw bytes, stored bytes) of each of its zstd frames, in order. Empty: it is stored as it is."""

    @property
    def raw_bytes(self) -> int:
        """Return the size of the safetensors file: leaves lie at offsets in it. Compressed, the file in the store is smaller."""
        return sum(raw for raw, _ in self.frames) if self.frames else self.size_bytes


@dataclass(frozen=True, slots=True)
class ComponentRecord:
    """Hold one component's tree and its leaves."""

    name: str
    tree: Node
    leaves: tuple[LeafRecord, ...]
    exactness: Exactness = "exact"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """Hold one reported number and the step it was measured at."""

    value: str
    """``float.hex()`` of the number, or ``nan``, ``inf``, ``-inf``."""
    step: int

    @property
    def number(self) -> float:
        """Return the value as a float."""
        return float.fromhex(self.value)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Say who made a generation, where and with what. Secrets are removed from the command line."""

    host: str = ""
    boot_id: str = ""
    pid: int = 0
    attempt: int = 1
    incarnation: str = ""
    command: str = ""
    git_commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Be the part of a manifest that judging, retaining and listing need; reading it skips trees and leaves."""

    format_version: int
    run_id: str
    number: int
    term: int
    write_id: str
    parent: int
    """The number of the head it was published on; 0 for the first generation of a run."""
    keep: tuple[int, ...]
    """The numbers that stay live beside this one (PROTOCOL rule 2)."""
    rollback_to: int | None
    """The base's number when it is not the parent; 0 when the state started anew; None when base and parent are one (rule 27)."""
    term_head: int
    term_next: int
    """The settlement of its term once more, for when that file cannot be read (rule 3a); see also ``term_unsure``."""
    step: int
    commit_timestamp: int
    blobs: tuple[BlobRecord, ...]
    trim_of: int | None = None
    """Set on a trim: the number of the generation whose content it repeats."""
    line: tuple[int, ...] = ()
    """The numbers among ``keep`` that its state goes back to, its own included: what a fallback may go to (rule 27)."""
    term_unsure: int = 0
    complete: bool = True
    healthy: bool = True
    nonfinite: tuple[str, ...] = ()
    metrics: dict[str, Metric] = field(default_factory=dict)
    best_by: str = ""
    """The metric that decided what is best when this was saved (`Keep.by`); empty if none did."""
    best_mode: Literal["max", "min"] = "max"
    reason: str = ""
    """Why it was saved: a trigger's words, ``final``, ``manual``, ``rollback``, ``trim``."""
    elapsed_s: str = "0x0.0p+0"
    """Training time so far over all attempts, seconds, as ``float.hex()``."""
    counters: dict[str, int] = field(default_factory=dict)
    """Progress beside ``step``: ``episodes``, ``epochs``, ``updates`` ... as the trainer counts them."""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def version(self) -> Version:
        """Return the identity of what was saved."""
        return Version(self.run_id, self.step, self.commit_timestamp)

    @property
    def total_bytes(self) -> int:
        """Return the size of every blob this generation stands on."""
        return sum(blob.size_bytes for blob in self.blobs)

    @property
    def new_bytes(self) -> int:
        """Return the size of the blobs which this generation wrote itself: in its term, and after its parent."""
        return sum(blob.size_bytes for blob in self.blobs if self._is_own(blob.name))

    def _is_own(self, name: str) -> bool:
        number, term = name.rpartition("/")[2].split("-")[:2]
        return term == f"t{self.term}" and int(number) > self.parent


@dataclass(frozen=True, slots=True)
class Manifest(Summary):
    """Record one generation. Creating it is the commit."""

    components: tuple[ComponentRecord, ...] = ()
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What must be equal for the same bits to come out: versions, thread counts, CPU capability, env ids, wrapper chain."""

    def component(self, name: str) -> ComponentRecord | None:
        """Return the component called ``name``, or None."""
        return next((component for component in self.components if component.name == name), None)


@dataclass(frozen=True, slots=True)
class Fence:
    """Claim a term: ``terms/0007.json``."""

    term: int
    claim_id: str
    host: str
    boot_id: str
    pid: int
    claimed_at: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Say which run a settlement set aside: everything it had published before that term (rule 26)."""

    run_id: str
    head: int
    """Its newest generation; 0 if it had none."""
    next: int
    first_term: int
    """The term it started with: older ones belong to runs that were set aside before it."""
    term: int
    """The term whose settlement set it aside."""
    at: str

    @property
    def to(self) -> str:
        """Return the directory within the root where it lies: a run root of its own."""
        return f"reset/{self.run_id}/"


@dataclass(frozen=True, slots=True)
class Settlement:
    """Say from which head a term started, and of which run: ``terms/0007.from.json``. A dead term settles nothing."""

    run_id: str
    term: int
    head: int
    next: int
    unsure: int = 0
    """Generations up to this may be half deleted: an unreadable manifest above the head may have dropped them (rule 3a)."""
    reset: Reset | None = None
    """The last reset up to this term. It is this very settlement's own if ``reset.term == term``."""
    dead: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Mark a directory as a run root: ``milepost.json``. The run it began with; which it holds now is for its terms to say."""

    format_version: int
    run_id: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Pin:
    """Ask that a generation stays (``wanted``), or say that it does (``held``): ``pins/000042``."""

    run_id: str
    number: int
    state: Literal["wanted", "held"]
    by: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineMark:
    """Say that a generation is not to be loaded, and why: ``quarantine/000040.json``."""

    run_id: str
    number: int
    kind: Literal["damaged", "kills-loader"]
    reason: str
    marked_at: str
    term: int


@dataclass(frozen=True, slots=True)
class Latest:
    """Point at the newest generation: ``LATEST``. A hint for pollers and people, never the truth."""

    run_id: str
    generation: int
    step: int
    manifest_digest: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Say which step is being saved: ``progress.json``, durable before the first byte of data."""

    run_id: str
    term: int
    attempt: int
    generation: int
    step: int
    written_at: str


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Say when each blob was last read and found as it was written: ``scrub.json``. A hint: lost, they are read again."""

    run_id: str
    checked_ns: dict[str, int]
    """By the blob's name, nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Name one place where saved and live state do not fit."""

    path: str
    saved: str
    live: str
    kind: str = "shape"
    """``missing``, ``unexpected``, ``shape``, ``dtype``, ``type``, ``version``, ``env`` ...: see `milepost.engine.mismatch`."""

    def __str__(self) -> str:
        return plain(f"{self.path}: saved {self.saved}, here {self.live}")


@dataclass(frozen=True, slots=True)
class Restored:
    """Say what a resume brought back."""

    generation: int
    step: int
    counters: dict[str, int]
    version: Version
    elapsed_s: float
    """Training time before this start, over all attempts."""
    components: tuple[str, ...]
    inexact: tuple[str, ...] = ()
    """Why the run may not go on bit for bit; empty when it does."""
    warnings: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Newer generations that were passed over, and why."""
    fault: FaultKind = "none"
    """What kind of fault this start came after, see `milepost.lifecycle.faults`."""

    @property
    def counted(self) -> bool:
        """Return whether the counters came back, too: then the loop goes on from ``step``."""
        return any(name.rpartition("/")[2] == "counters" for name in self.components)

    @property
    def exact(self) -> bool:
        """Return whether the run goes on bit for bit, as far as milepost can tell."""
        return not self.inexact
