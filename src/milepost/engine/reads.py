"""Read leaves side by side, each byte once: straight to where it belongs, and digested while the processor has it at hand."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from queue import Empty, SimpleQueue
from typing import NamedTuple

from milepost.encode.digest import Digest, matches
from milepost.encode.frames import Extent, ReadInto
from milepost.errors import CorruptError, NotFoundError, StoreError
from milepost.records import LeafRecord, Manifest
from milepost.store.base import BlobReader, Store
from milepost.threads import Member

PIECE_BYTES = 2 << 20
"""How much of a large leaf is read before it is digested: it is in the processor's cache still."""
SMALL_BYTES = 128 << 10
"""Leaves up to this size that lie close together are read by one call, and copied out of one buffer."""
RUN_BYTES = 1 << 20
"""How much one such call reads: all the memory that a thread needs of its own."""
GAP_BYTES = 4096
"""How much between two leaves is read along rather than called for anew: padding, or what a later save has replaced."""
THREADS = 4
"""How many read at most, the caller among them."""
_WORTH_A_THREAD_BYTES = 8 << 20
_OPEN_FILES = 16


class Leaf(NamedTuple):
    """Name a leaf that is to be read; with ``into`` None it is only verified."""

    component: str
    record: LeafRecord
    into: memoryview | None


class Reads:
    """Queue leaves of one generation and read them in threads that end with the context.

    What looks damaged is read once more, past the page cache and alone, before it is believed: a flaky read is not damage,
    nor is one that the store says may be tried again. Used by one thread.

    Where live objects are filled, enter it twice, ``with reads, reads:``. A Ctrl-C may strike just as the first exit begins,
    and whoever leaves then goes on with objects that a thread would still write to.
    """

    def __init__(self, store: Store, manifest: Manifest, *, threads: int | None = None) -> None:
        self.store = store
        self.manifest = manifest
        self._most_threads = (threads or min(THREADS, _cores())) - 1  # the caller reads, too, when it waits
        self._small: list[Leaf] = []
        self._small_bytes = 0
        self._jobs: SimpleQueue[list[Leaf] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[list[Leaf], BaseException | None]] = SimpleQueue()
        self._under_way = 0
        self._stopped = False
        self._threads: list[Member] = []
        self._own = _Hand(self)
        self._passing = ExitStack()
        self._passed: set[int] = set()
        """The blobs that anything was asked for of: no other is looked at."""
        self._ends: dict[int, list[int]] = {}
        self.read_bytes = 0
        """How many bytes of leaves were asked for."""

    def __enter__(self) -> Reads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Drop what nobody has begun to read and wait for the rest, whatever strikes meanwhile."""
        self._stopped = True
        struck: BaseException | None = None
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            while thread.works:
                try:
                    thread.wait()
                except BaseException as error:  # noqa: BLE001 - Ctrl-C: told when nobody uses the live objects any more
                    struck = error
        self._own.close()
        self._passing.close()
        if struck is not None:
            raise struck

    def ask(self, component: str, record: LeafRecord, into: memoryview | None) -> None:
        """Have ``into`` filled with a leaf's bytes by the next `settle`; until then nobody may touch it."""
        leaf = Leaf(component, record, into)
        if into is not None and len(into) != record.size_bytes:
            raise self._damaged(leaf)
        if record.blob not in self._passed:
            self._passed.add(record.blob)
            blob = self.manifest.blobs[record.blob]
            self._passing.enter_context(self.store.passing(blob.name, blob.size_bytes))
        self.read_bytes += record.size_bytes
        if record.size_bytes > SMALL_BYTES:
            self._add([leaf])
            return
        self._small.append(leaf)
        self._small_bytes += record.size_bytes
        if self._small_bytes >= _WORTH_A_THREAD_BYTES:
            self._add_small()

    def settle(self) -> None:
        """Return once all that was asked for is there and verified.

        Raises `CorruptError` (kind ``damaged-leaf``) and what the store raises; what was asked for may then be filled or not.
        """
        self._add_small()
        while self._do_one(self._own, wait=False):
            pass
        doubtful: list[Leaf] = []
        failures: list[BaseException] = []
        while self._under_way:
            doubted, failure = self._done.get()
            self._under_way -= 1
            doubtful += doubted
            failures += [failure] if failure is not None else []
        if failures:
            raise failures[0]
        if doubtful:
            self._read_again(doubtful)

    @property
    def stopped(self) -> bool:
        """Return whether nobody waits any more for what is not read yet."""
        return self._stopped

    def pieces(self, record: LeafRecord) -> Iterator[tuple[int, int]]:
        """Return the ranges ``[start, stop)`` of its file by which a large leaf is read."""
        start = record.start
        while start < record.stop:
            stop = min(record.stop, self._end_of_frame(record.blob, start) or start + PIECE_BYTES)
            yield start, stop
            start = stop

    def _add(self, job: list[Leaf]) -> None:
        self._under_way += 1
        self._jobs.put(job)
        if len(self._threads) < min(self._most_threads, self._under_way, self.read_bytes // _WORTH_A_THREAD_BYTES):
            # Only where there is something to read: a small state is read before a thread would have begun.
            self._hire()

    def _hire(self) -> None:
        thread = Member(self._work, f"milepost-read-{len(self._threads)}")
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            # The machine has no more threads to give. Those there are, or the caller alone, do the same work later.
            self._threads.pop()
            self._most_threads = len(self._threads)

    def _add_small(self) -> None:
        # In the order of the file, which is not that of the tree: wider types come first in it.
        small, self._small, self._small_bytes = self._small, [], 0
        small.sort(key=lambda leaf: (leaf.record.blob, leaf.record.start))
        run: list[Leaf] = []
        most = stop = 0
        for leaf in small:
            record = leaf.record
            if run and (record.blob != run[0].record.blob or record.start > stop + GAP_BYTES or record.stop > most):
                self._add(run)
                run = []
            if not run:
                stop, most = record.stop, self._end_of_frame(record.blob, record.start) or record.start + RUN_BYTES
            run.append(leaf)
            stop = max(stop, record.stop)
        if run:
            self._add(run)

    def _end_of_frame(self, blob: int, start: int) -> int:
        """Return where the compressed frame ends that holds this byte of the raw file, so that none is unpacked twice; else 0."""
        ends = self._ends.get(blob)
        if ends is None:
            ends = self._ends[blob] = [*accumulate(raw for raw, _ in self.manifest.blobs[blob].frames)]
        at = bisect_right(ends, start)
        return ends[at] if at < len(ends) else 0

    def _name_of(self, leaf: Leaf) -> str:
        return self.manifest.blobs[leaf.record.blob].name

    def _work(self) -> None:
        hand = _Hand(self)
        try:
            while self._do_one(hand, wait=True):
                pass
        finally:
            hand.close()

    def _do_one(self, hand: _Hand, *, wait: bool) -> bool:
        """Do the next job; return whether there was one."""
        try:
            job = self._jobs.get(block=wait)
        except Empty:
            return False
        if job is None:
            return False
        doubtful: list[Leaf] = []
        failure: BaseException | None = None
        try:
            doubtful = [] if self._stopped else hand.read(job)
        except StoreError as error:
            doubtful, failure = (job, None) if error.retryable else ([], error)
        except BaseException as error:  # noqa: BLE001 - whoever waits in `settle` is told, and an interrupt is the caller's own
            failure = error
        # Before anyone is told that it is done: who holds on to a bytearray's memory keeps its owner from changing its size.
        del job
        # What fails ends the whole load: nobody waits for the rest.
        self._stopped = self._stopped or failure is not None
        self._done.put((doubtful, failure))
        return True

    def _read_again(self, leaves: list[Leaf]) -> None:
        """Read each leaf anew, now that no other read is under way. From this machine's memory it would be the same bytes."""
        for name in dict.fromkeys(map(self._name_of, leaves)):
            self.store.drop_cached(name)
        self._own.close()
        for leaf in leaves:
            if not self._own.read_one(leaf):
                raise self._damaged(leaf)

    def _damaged(self, leaf: Leaf) -> CorruptError:
        return CorruptError(
            "a leaf's bytes are not those that were saved",
            kind="damaged-leaf",
            hint=f"milepost verify {self.store.url}",
            generation=self.manifest.number,
            component=leaf.component,
            leaf=leaf.record.path,
            blob=self._name_of(leaf),
        )


class _Hand:
    """Do the reads of one thread: it has its files open, and a buffer."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._open: dict[int, tuple[BlobReader, ReadInto]] = {}
        self._buffer = memoryview(b"")

    def read(self, job: list[Leaf]) -> list[Leaf]:
        """Read what lies close together; return what does not look as it was saved."""
        if len(job) == 1:
            return [] if self.read_one(job[0]) else job
        start, stop = job[0].record.start, max(leaf.record.stop for leaf in job)
        there = self._room(stop - start)
        try:
            there = there[: self._file(job[0].record.blob)(start, there)]
        except (NotFoundError, CorruptError):
            return job
        return [leaf for leaf in job if not _take(leaf, there[leaf.record.start - start : leaf.record.stop - start])]

    def read_one(self, leaf: Leaf) -> bool:
        """Read a leaf piece by piece; return whether it is as it was saved."""
        record, into, digest = leaf.record, leaf.into, Digest.like(leaf.record.digest)
        try:
            read = self._file(record.blob)
            for start, stop in self._reads.pieces(record):
                piece = self._room(stop - start) if into is None else into[start - record.start : stop - record.start]
                if self._reads.stopped or read(start, piece) < len(piece):
                    return False
                digest.update(piece)
        except (NotFoundError, CorruptError):
            return False
        return digest.hex() == record.digest

    def close(self) -> None:
        """Close the files, and forget what was read of them."""
        while self._open:
            self._open.popitem()[1][0].close()

    def _file(self, blob: int) -> ReadInto:
        if blob not in self._open:
            if len(self._open) == _OPEN_FILES:
                self._open.pop(next(iter(self._open)))[0].close()
            record = self._reads.manifest.blobs[blob]
            file = self._reads.store.open_reader(record.name)
            self._open[blob] = file, Extent(file.read_into, record.frames).read if record.frames else file.read_into
        return self._open[blob][1]

    def _room(self, size_bytes: int) -> memoryview:
        if len(self._buffer) < size_bytes:
            self._buffer = memoryview(bytearray(size_bytes))
        return self._buffer[:size_bytes]


def _take(leaf: Leaf, data: memoryview) -> bool:
    """Copy a small leaf to where it belongs, unless it is not as it was saved: then return False."""
    if len(data) < leaf.record.size_bytes or not matches(data, leaf.record.digest):
        return False
    if leaf.into is not None:
        leaf.into[:] = data
    return True


def _cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
