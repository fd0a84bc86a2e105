"""Choose a part of a run's data to read: the n-th of t parts, a random share, or about so many bytes."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.encode.digest import xxh3
from milepost.errors import UsageError
from milepost.lifecycle.amounts import bytes_of
from milepost.records import BlobRecord

_PART = re.compile(r"0*(\d{1,9})/0*(\d{1,9})$", re.ASCII)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%(?::(\w+))?$", re.ASCII)
_SIZE = re.compile(r"([^:]+)(?::(\w+))?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Subset:
    """Name a part of the blobs. The same one is chosen again by the same words, as long as the blobs are the same."""

    part: int = 1
    parts: int = 1
    """The ``part``-th of ``parts``, by a hash of the name: ``parts`` runs, in whatever order, read everything once."""
    share: float | None = None
    size_bytes: int | None = None
    seed: str = ""
    """Which blobs a share or a size is made of."""

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.share:g}%:{self.seed}"
        return f"{self.part}/{self.parts}" if self.size_bytes is None else f"{self.size_bytes}:{self.seed}"

    def choose(self, blobs: Collection[BlobRecord]) -> frozenset[str]:
        """Return the names of those of ``blobs`` that are to be read: whole ones, so a little more than was asked for."""
        if self.share is None and self.size_bytes is None:
            # A blob keeps its part for life, whatever is saved or retired between two of the runs.
            return frozenset(blob.name for blob in blobs if int(xxh3(blob.name.encode()), 16) % self.parts == self.part - 1)
        sizes = {blob.name: blob.size_bytes for blob in blobs}
        wanted = self.size_bytes if self.size_bytes is not None else sum(sizes.values()) * (self.share or 0) / 100
        chosen: dict[str, int] = {}
        left = wanted
        for name in sorted(sizes, key=lambda name: xxh3(f"{self.seed} {name}".encode())):
            if left <= 0:
                break
            chosen[name] = sizes[name]
            left -= sizes[name]
        return frozenset(chosen)


def parse(text: str, clock: Clock) -> Subset:
    """Return what ``3/10``, ``5%`` or ``500M`` means; ``5%:SEED`` chooses what a run that printed this seed chose.

    >>> from milepost.clock import FakeClock
    >>> str(parse("3/10", FakeClock())), str(parse("5%", FakeClock())), str(parse("2G:7f", FakeClock()))
    ('3/10', '5%:0000000000000001', '2147483648:7f')
    """
    if part := _PART.match(text):
        if 1 <= int(part[1]) <= int(part[2]):
            return Subset(int(part[1]), int(part[2]))
    elif share := _SHARE.match(text):
        if 0 < float(share[1]) <= 100:
            return Subset(share=float(share[1]), seed=share[2] or clock.nonce())
    elif size := _SIZE.match(text):
        try:
            return Subset(size_bytes=bytes_of(size[1]), seed=size[2] or clock.nonce())
        except UsageError as error:
            raise _not_a_part(text) from error
    raise _not_a_part(text)


def _not_a_part(text: str) -> UsageError:
    hint = "1/10 to 10/10 read everything in ten runs; 5% is a random share; 500M is about so much"
    return UsageError("this does not name a part of the data", kind="bad-subset", hint=hint, given=text)
