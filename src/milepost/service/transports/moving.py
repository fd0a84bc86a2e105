"""Bring the bytes of a version here or there, by the best way that can be reached, and let nothing through that is damaged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from milepost.clock import Clock, SystemClock
from milepost.encode.digest import Buffer
from milepost.errors import CorruptError, MilepostError, NotFoundError, ServiceError
from milepost.service.index import Chunks
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.bringing import Upload
from milepost.service.transports.carrying import Crew
from milepost.service.transports.landing import Land, Landing, PrivateLanding

RUN_CHUNKS = 16
"""How many chunks one request asks for: the next is asked for while these are on their way over another link."""


@dataclass(slots=True)
class Moved:
    """Say what came, and how."""

    views: dict[Blob, memoryview]
    """Each blob, read-only: where it lies on this host, or where it was put."""
    bytes_by: dict[str, int] = field(default_factory=dict)
    """How many bytes each transport has carried. What was mapped is none."""
    mapped_bytes: int = 0


class Mover:
    """Move blobs over transports. Of one thread at a time; holds nothing between two calls.

    ``links``: how many are used at once. ``tries``: how often the same is asked of one source in vain. ``land``: where what is
    fetched comes to lie (`milepost.service.transports.host_cache`); memory of this process unless it is said.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        clock: Clock | None = None,
        *,
        links: int = 2,
        tries: int = 3,
        land: Land | None = None,
    ) -> None:
        self._transports = {transport.name: transport for transport in transports}
        self._clock = clock or SystemClock()
        self._links, self._tries = links, tries
        self._land: Land = land or PrivateLanding

    def fetch(
        self,
        sources: Sequence[Source],
        parts: Mapping[Blob, Chunks],
        *,
        limit_bytes: int,
        into: Mapping[Blob, memoryview] | None = None,
        timeout_s: float | None = None,
    ) -> Moved:
        """Return the bytes of all ``parts``, from the best of ``sources``; each chunk is what its digest says, or nothing comes.

        Where one lies in memory of this host it is mapped, and not looked at. What one source does not have, or has damaged,
        comes from the next; what has come stays. ``into`` is memory of the caller's for some parts.

        Raises `CorruptError` (kind ``damaged-shard``) naming the chunk that no source has whole, `ServiceError` (kinds
        ``transport-failed``, ``unreachable``, ``fetch-timeout``), `NotFoundError` (kind ``no-such-blob``), and before anything is
        asked for `ServiceError` (kind ``too-large``) and `CorruptError` (kind ``bad-chunks``) for what cannot be.
        """
        check(parts, limit_bytes)
        moved = Moved({})
        given = into or {}
        self._map(sources, {blob: chunks for blob, chunks in parts.items() if blob not in given}, moved)
        rest = {blob: chunks for blob, chunks in parts.items() if blob not in moved.views}
        if rest:
            fetch = Fetch(self._deadline(timeout_s), self._clock)
            with ExitStack() as stack:
                # In an order that all readers of a host keep: where landings are shared, nobody waits in a ring.
                for blob, chunks in sorted(rest.items(), key=lambda item: item[1].digest):
                    landing = PrivateLanding(chunks, given[blob]) if blob in given else self._land(chunks)
                    fetch.parts.append(Part(blob, chunks, stack.enter_context(closing(landing))))
                self._fetch(sources, fetch, moved)
        return moved

    def room(self, sinks: Sequence[Source], blob: Blob, size_bytes: int) -> memoryview | None:
        """Return memory where the service wants a part to be, to be filled with it; None: fill your own, then `bring` it.

        Raises `ServiceError` (kind ``transport-failed``) where there is no room in it.
        """
        for sink, transport in self._reachable(sinks, local=True):
            link = transport.reach(sink)
            if link is not None:
                with link:
                    memory = link.map_new(blob, size_bytes)
                if memory is not None:
                    return memory
        return None

    def bring(self, sinks: Sequence[Source], parts: Mapping[Blob, Buffer], *, timeout_s: float | None = None) -> dict[str, int]:
        """Bring all ``parts`` to the best of ``sinks`` that can be reached; return how many bytes each transport has carried.

        What fails in the middle goes on where it was, over a new link, then over the next sink. Raises `ServiceError`: kind
        ``transport-failed`` or ``unreachable``, or what the service refuses it with, at once.
        """
        upload = Upload(parts, self._deadline(timeout_s), self._clock)
        carried: dict[str, int] = {}
        failures: list[NotFoundError | ServiceError] = []
        for sink, transport in self._reachable(sinks):
            if upload.is_over:
                break
            before = upload.moved_bytes
            crew = self._crew(sink, transport)
            crew.carry(upload.jobs())
            failures += crew.failures
            if upload.moved_bytes > before:
                carried[transport.name] = carried.get(transport.name, 0) + upload.moved_bytes - before
        if upload.is_over:
            return carried
        raise failures[-1] if failures else unreachable(sinks)

    def _map(self, sources: Sequence[Source], parts: Mapping[Blob, Chunks], moved: Moved) -> None:
        for source, transport in self._reachable(sources, local=True):
            link = transport.reach(source)
            if link is None:
                continue
            with link:
                for blob in parts.keys() - moved.views.keys():
                    view = _mapped(link, blob)
                    if view is not None and len(view) == parts[blob].size_bytes:
                        moved.views[blob] = view.toreadonly()
        moved.mapped_bytes = sum(map(len, moved.views.values()))

    def _fetch(self, sources: Sequence[Source], fetch: Fetch, moved: Moved) -> None:
        failures: list[NotFoundError | ServiceError] = []
        for source, transport in self._reachable(sources):
            if not fetch.is_over:
                before = fetch.moved_bytes
                crew = self._crew(source, transport)
                crew.carry(fetch.jobs(self._tries))
                failures += crew.failures
                carried = fetch.moved_bytes - before
                if carried:
                    moved.bytes_by[transport.name] = moved.bytes_by.get(transport.name, 0) + carried
        if not fetch.is_over:
            raise fetch.damage(sources) or (worst(failures) if failures else unreachable(sources))
        for part in fetch.parts:
            moved.views[part.blob] = part.landing.finish()

    def _reachable(self, sources: Sequence[Source], *, local: bool = False) -> Iterator[tuple[Source, Transport]]:
        """Yield those of which the way is known here, those on this host first."""
        known = [(source, self._transports[source.transport]) for source in sources if source.transport in self._transports]
        yield from (each for each in known if each[1].is_local)
        if not local:
            yield from (each for each in known if not each[1].is_local)

    def _crew(self, source: Source, transport: Transport) -> Crew:
        return Crew(lambda: transport.reach(source), links=self._links, tries=self._tries)

    def _deadline(self, timeout_s: float | None) -> int | None:
        return None if timeout_s is None else self._clock.monotonic_ns() + round(timeout_s * 1e9)


@dataclass(slots=True)
class Part:
    """Be one blob that is on its way."""

    blob: Blob
    chunks: Chunks
    landing: Landing
    damaged: dict[int, int] = field(default_factory=dict)
    """How often each chunk came damaged."""


@dataclass(slots=True)
class Fetch:
    """Be all that one call fetches."""

    until_ns: int | None
    clock: Clock
    parts: list[Part] = field(default_factory=list)
    moved_bytes: int = 0
    counting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_over(self) -> bool:
        """Return whether all is there."""
        return not any(part.landing.missing() for part in self.parts)

    def jobs(self, tries: int) -> list[Run]:
        """Return what is missing, in runs of chunks that follow one another; the parts in turn, so that all move at once."""
        by_part = [[Run(self, part, run, tries) for run in runs_of(part.landing.missing())] for part in self.parts]
        longest = max(map(len, by_part), default=0)
        return [runs[at] for at in range(longest) for runs in by_part if at < len(runs)]

    def count(self, size_bytes: int) -> None:
        """Add what has come. From several threads."""
        with self.counting:
            self.moved_bytes += size_bytes

    def check_time(self) -> None:
        """Raise `ServiceError` (kind ``fetch-timeout``) where the caller's time is over."""
        if self.until_ns is not None and self.clock.monotonic_ns() > self.until_ns:
            raise ServiceError(
                "a fetch took too long",
                kind="fetch-timeout",
                hint="give it more time: fetch_timeout; what has come was given up",
                moved_bytes=self.moved_bytes,
            )

    def damage(self, sources: Sequence[Source]) -> CorruptError | None:
        """Return what to say of chunks that came damaged, wherever they were asked for; None if none did."""
        for part in self.parts:
            for number in part.landing.missing():
                if number in part.damaged:
                    return damaged(part, number, sources)
        return None


class Run:
    """Fetch chunks that follow one another, and check each when it has come, while the next is on its way."""

    def __init__(self, fetch: Fetch, part: Part, numbers: Sequence[int], tries: int) -> None:
        self._fetch, self._part, self._tries = fetch, part, tries
        self._numbers = list(numbers)

    @property
    def progress(self) -> int:
        return -len(self._numbers)

    def run(self, link: Link) -> list[Run]:
        part, again = self._part, []
        self._fetch.check_time()
        if not self._numbers:
            return []
        ranges = [part.chunks.range_of(number) for number in self._numbers]
        pieces = [part.landing.memory[start:stop] for start, stop in ranges]
        for piece in link.read_each(part.blob, ranges[0][0], pieces):
            number = self._numbers.pop(0)
            self._fetch.count(len(piece))
            if part.chunks.matches(number, piece):
                part.landing.landed(number)
            else:
                part.damaged[number] = part.damaged.get(number, 0) + 1
                if self._tries > 1:
                    again.append(Run(self._fetch, part, [number], self._tries - 1))
            if self._numbers:
                self._fetch.check_time()
        return again


def runs_of(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of numbers that follow one another, at most `RUN_CHUNKS` each.

    >>> list(runs_of([0, 1, 4, 5, 6]))
    [[0, 1], [4, 5, 6]]
    """
    run: list[int] = []
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == RUN_CHUNKS):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def check(parts: Mapping[Blob, Chunks], limit_bytes: int) -> None:
    """Refuse parts that cannot be, or that are more than the caller would take, before memory is taken for them."""
    for blob, chunks in parts.items():
        if not chunks.is_sound:
            raise CorruptError(
                "a part has not one digest for each of its chunks",
                kind="bad-chunks",
                hint="the service and this client disagree on what a part is: milepost --version on both",
                blob=str(blob),
                size_bytes=chunks.size_bytes,
                digests=len(chunks.digests) // 16,
            )
    size_bytes = sum(chunks.size_bytes for chunks in parts.values())
    if size_bytes > limit_bytes:
        raise ServiceError(
            "a version is larger than this client takes",
            kind="too-large",
            hint="if it is meant to be so large, raise the client's limit_bytes",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )


def worst(failures: Sequence[NotFoundError | ServiceError]) -> MilepostError:
    """Return the failure to tell: one that may pass before one that says that the bytes are gone."""
    return max(failures, key=lambda failure: isinstance(failure, ServiceError))


def unreachable(sources: Sequence[Source]) -> ServiceError:
    """Say that no way leads to the bytes from here."""
    return ServiceError(
        "no way to the bytes can be reached from here",
        kind="unreachable",
        hint="is the bulk port open to this host, and the token the service's? transport=`grpc` needs neither",
        sources=" ".join(f"{source.transport}:{source.address}" for source in sources) or "none",
    )


def damaged(part: Part, number: int, sources: Sequence[Source]) -> CorruptError:
    """Name the chunk that is damaged wherever it was asked for."""
    start, stop = part.chunks.range_of(number)
    return CorruptError(
        "a shard is damaged in every copy that can be reached",
        kind="damaged-shard",
        hint="milepost rollback takes an older version; milepost status says which there are",
        shard=part.blob.name.removesuffix(".safetensors"),
        place=part.blob.place,
        chunk=number,
        bytes=f"{start}-{stop}",
        tries=part.damaged[number],
        sources=" ".join(dict.fromkeys(source.transport for source in sources)),
    )


def _mapped(link: Link, blob: Blob) -> memoryview | None:
    try:
        return link.map(blob)
    except (NotFoundError, ServiceError):
        return None  # it comes another way; if none has it either, that one says so
