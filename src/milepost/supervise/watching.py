"""See from outside what a training command does with its run roots. Nothing is claimed, locked or changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from milepost.clock import Clock
from milepost.errors import CorruptError
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.records import Manifest
from milepost.store.resolve import original_of


@dataclass(slots=True)
class Root:
    """Hold what was seen of one run root. Manifests are kept when they come: retention takes the older ones away."""

    path: Path
    manifests: dict[int, Manifest] = field(default_factory=dict)
    appeared_ns: list[int] = field(default_factory=list)
    blobs: set[str] = field(default_factory=set)

    @property
    def original(self) -> str:
        """Return what the command calls it."""
        return original_of(self.path.name)

    @property
    def newest(self) -> Manifest | None:
        """Return the newest generation."""
        return self.manifests[max(self.manifests)] if self.manifests else None

    @property
    def term(self) -> int:
        """Return the highest term that has published something."""
        return max((manifest.term for manifest in self.manifests.values()), default=0)

    @property
    def is_saving(self) -> bool:
        """Return whether data lies there for a generation that is not: a save is under way, or was when the command ended."""
        newest = max(self.manifests, default=0)
        numbers = (layout.blob_number(layout.BLOBS + name) for name in _names(self.path / layout.BLOBS))
        return any(number is not None and number > newest for number in numbers)

    def has(self, number: int) -> bool:
        """Return whether a generation is still there."""
        return (self.path / layout.manifest(number)).exists()

    def look(self, clock: Clock) -> bool:
        """Note what is new, and return whether anything is."""
        blobs = set(_names(self.path / layout.BLOBS)) - self.blobs
        self.blobs |= blobs
        names = [layout.GENERATIONS + name for name in _names(self.path / layout.GENERATIONS)]
        new = {number: name for name in names if (number := layout.generation_number(name)) and number not in self.manifests}
        for number in sorted(new):
            with suppress(FileNotFoundError, CorruptError):  # retired since it was listed; or it is not milepost's
                self.manifests[number] = decode_manifest((self.path / new[number]).read_bytes(), new[number])
                self.appeared_ns.append(clock.monotonic_ns())
        return bool(new or blobs)


@dataclass(slots=True)
class Watch:
    """Look at all run roots in one directory, as often as asked."""

    path: Path
    clock: Clock
    roots: dict[str, Root] = field(default_factory=dict)

    def look(self) -> bool:
        """Note what is new, and return whether anything is."""
        for name in _names(self.path):
            if name not in self.roots and (self.path / name).is_symlink():
                continue  # another name of one that is there
            self.roots.setdefault(name, Root(self.path / name))
        return sum(root.look(self.clock) for root in self.roots.values()) > 0

    @property
    def saved(self) -> dict[str, Root]:
        """Return the roots that have a generation."""
        return {name: root for name, root in sorted(self.roots.items()) if root.manifests}

    @property
    def published(self) -> int:
        """Return how many generations were seen, in all roots together."""
        return sum(len(root.manifests) for root in self.roots.values())

    @property
    def blobs(self) -> int:
        """Return how many files of data were seen, whole or not."""
        return sum(len(root.blobs) for root in self.roots.values())

    @property
    def step(self) -> int:
        """Return the step of the newest generation; of several roots the highest."""
        return max((root.newest.step for root in self.roots.values() if root.newest is not None), default=0)

    @property
    def is_saving(self) -> bool:
        """Return whether a save is under way in some root."""
        return any(root.is_saving for root in self.roots.values())

    def gap_ns(self, published: int) -> int:
        """Return how long it took from the ``published``-th generation to the next; 0 if there was none."""
        times = sorted(ns for root in self.roots.values() for ns in root.appeared_ns)
        return times[published] - times[published - 1] if 0 < published < len(times) else 0


def strays(path: Path) -> list[Path]:
    """Return the run roots below a directory: where a command saved that went past what it was told."""
    return sorted(Path(folder) for folder, _, files in os.walk(path) if layout.RUN in files)


def _names(path: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from os.listdir(path)
