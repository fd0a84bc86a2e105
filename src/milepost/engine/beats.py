"""Show a supervisor that a run is alive, in a page of memory that both see: a beat at each safe point costs no system call.

The page is a file of the attempt's folder (``MILEPOST_SUPERVISED``). Words that never change are in it once; what changes lies
in two slots, written in turn, each with its number at both ends. Whoever is killed while it writes one leaves the other.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import weakref
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from milepost.clock import Clock
from milepost.engine import forks, supervised

log = logging.getLogger("milepost")

Phase: TypeAlias = Literal["claiming", "resuming", "training", "saving", "stopping", "closed"]

_PHASES: tuple[Phase, ...] = get_args(Phase)
_CODES = {phase: code for code, phase in enumerate(_PHASES)}
_SIZE_BYTES = 4096
_MAGIC = b"milebeat1"
_SLOT = struct.Struct("<QqQQQQQ")
"""Number, step, phase, loading, resumed, generation, and the number again."""
_SLOTS = (64, 192)
"""Where the two slots begin: apart, so that no line of a processor's cache holds some of both."""
_WORDS = 512
_LENGTHS = struct.Struct("<IHH")
"""PID, and the lengths of run id and root."""
_HEAD = struct.Struct(f"<{len(_MAGIC)}s")
_LONGEST = _SIZE_BYTES - _WORDS - _LENGTHS.size - 64
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Beats:
    """Say how far one engine of a process was when it wrote last."""

    pid: int
    root: str
    """The URL of its run root."""
    run_id: str
    """Empty until it holds the root."""
    count: int
    """How often it has written: whoever sees it rise knows that the process lives."""
    step: int
    """The last step that it was told of; -1 before."""
    phase: Phase
    loading: int
    """The generation that it is loading; 0: none."""
    resumed: int
    """The generation that it has gone on from; 0: none."""
    generation: int
    """The newest that it has published; 0: none."""


class Beat:
    """Write the beats of one engine. Any thread may beat; a forked child writes into a page of its own, which nobody sees."""

    __slots__ = ("__weakref__", "_memory", "count", "generation", "loading", "phase", "resumed", "step")

    def __init__(self) -> None:
        self.count, self.step = 0, -1
        self.loading = self.resumed = self.generation = 0
        self.phase: Phase = "claiming"
        self._memory: mmap.mmap | bytearray = bytearray(_SIZE_BYTES)
        """Nobody's, until somebody supervises."""

    def show(self, folder: str | None, root: str, clock: Clock) -> None:
        """Beat where others see it from now on: in a new file of ``folder``, if there is one. A disk that fails stops nobody."""
        if folder is None:
            return
        try:
            with forks.no_fork():
                page = _page(os.path.join(folder, f"beat-{os.getpid()}-{clock.nonce()}"))
                address = forks.withhold_memory(page)
        except OSError as error:
            log.warning("whoever supervises this run cannot see that it is alive: %s", error)
            return
        # The page is not unmapped by hand, since another thread may be about to beat: it goes with this object.
        weakref.finalize(self, forks.release, memory=address).atexit = False
        self._memory = page
        self.name(root, "")

    def name(self, root: str, run_id: str) -> None:
        """Say whose beats these are, and beat."""
        words = run_id.encode()[:64], os.fsencode(root)[:_LONGEST]  # a path may hold bytes that are no text
        self._memory[: _HEAD.size] = bytes(_HEAD.size)
        _LENGTHS.pack_into(self._memory, _WORDS, os.getpid(), *map(len, words))
        text = b"".join(words)
        self._memory[_WORDS + _LENGTHS.size : _WORDS + _LENGTHS.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, _MAGIC)
        self.beat()

    def beat(self) -> None:
        """Write what the attributes say."""
        self.count = count = self.count + 1
        _SLOT.pack_into(
            self._memory,
            _SLOTS[count & 1],
            count,
            self.step,
            _CODES[self.phase],
            self.loading,
            self.resumed,
            self.generation,
            count,
        )

    def at(self, step: int, phase: Phase = "training") -> None:
        """Beat at a safe point."""
        self.step = step
        self.phase = phase
        self.beat()

    def enter(self, phase: Phase) -> None:
        """Beat as another phase begins."""
        self.phase = phase
        self.beat()

    def load(self, number: int) -> None:
        """Beat as a generation is about to be loaded, or with 0 once that is over."""
        self.loading = number
        self.phase = "resuming"
        self.beat()

    def publish(self, number: int) -> None:
        """Beat once a generation is published."""
        self.generation = number
        self.beat()


def read(path: str | os.PathLike[str]) -> Beats | None:
    """Return what a process has written last; None if there is nothing to be read yet, or it is no such file."""
    try:
        descriptor = supervised.open_left(path)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            # Twice, and only what is the same both times: a slot may be overwritten while it is read.
            first, second = (os.pread(descriptor, _SIZE_BYTES, 0) for _ in range(2))
            if len(first) < _SIZE_BYTES:
                return None
            found = _newest(first, second)
            if found is not None and first[_WORDS:] == second[_WORDS:] and all(map(_is_named, (first, second))):
                return _beats(first, found)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _is_named(page: bytes) -> bool:
    return page.startswith(_MAGIC)


def _newest(first: bytes, second: bytes) -> tuple[int, ...] | None:
    """Return the slot with the highest number among those that were read whole."""
    whole = [
        slot
        for at in _SLOTS
        if first[at : at + _SLOT.size] == second[at : at + _SLOT.size]
        and (slot := _SLOT.unpack_from(first, at))[0] == slot[-1]
        and slot[0]
        and slot[2] < len(_PHASES)
    ]
    return max(whole, default=None)


def _beats(page: bytes, slot: tuple[int, ...]) -> Beats:
    pid, of_run, of_root = _LENGTHS.unpack_from(page, _WORDS)
    start = _WORDS + _LENGTHS.size
    run_id, root = page[start : start + of_run], page[start + of_run : start + of_run + of_root]
    count, step, phase, loading, resumed, generation, _ = slot
    texts = (os.fsdecode(root), run_id.decode(errors="replace"))
    return Beats(pid, *texts, count, step, _PHASES[phase], loading, resumed, generation)


def _page(path: str) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Its one block is set aside here: a page of a file with a hole would end the process with SIGBUS on a full disk.
        os.posix_fallocate(descriptor, 0, _SIZE_BYTES)
        return mmap.mmap(descriptor, _SIZE_BYTES)
    finally:
        os.close(descriptor)
