"""Choose the form in which a chunk is told: the one that is likely to be there first, by counted changes and a sample.

The times are those of one thread on the machine on which the forms were measured (docs/decisions/0017-delta.md). They only
have to be right against each other: a wrong choice costs time or bytes, and never a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from milepost.service.delta import forms
from milepost.service.delta.forms import Packer, Told
from milepost.service.delta.settings import How
from milepost.service.delta.words import Mask, Words

Way: TypeAlias = Literal["sparse", "dense", "shuffled", "raw"]

_STRETCHES, _STRETCH_WORDS = 16, 4096
"""What is looked at of a chunk: enough for a byte's frequencies, and a hundredth of the time."""
_FEW = 16
"""Where a sixteenth of the words changed, or less, no other form was smaller than the sparse one."""
_SURE = 64
"""So many changes in a sample say what others are like."""

_NS_A_WORD, _NS_A_CHANGE = 0.7, 10.0
_NS_A_DENSE_BYTE, _NS_A_SHUFFLED_BYTE, _NS_A_RAW_BYTE = 1.5, 1.6, 0.1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Be one chunk that is to be told; ``old`` and ``differs`` are None where there is nothing to tell it against."""

    old: Words | None
    new: Words
    differs: Mask | None
    changed: int

    @classmethod
    def of(cls, old: Words | None, new: Words) -> Chunk:
        """Compare the bits of a chunk."""
        differs: Mask | None = None if old is None else np.not_equal(old, new)
        return cls(old, new, differs, len(new) if differs is None else int(np.count_nonzero(differs)))

    def tell(self, way: Way, packer: Packer) -> Told:
        """Tell it in this way."""
        if way == "sparse" and self.old is not None and self.differs is not None:
            return forms.sparse(self.old, self.new, self.differs, packer)
        if way == "dense" and self.old is not None:
            return forms.dense(self.old, self.new, packer)
        return forms.shuffled(self.new, packer) if way == "shuffled" else forms.raw(self.new)


def choose(chunk: Chunk, how: How, packer: Packer) -> Way:
    """Return the way in which a chunk, some words of which changed, is to be told."""
    ways = _allowed(chunk, how)
    if ways[0] == "sparse" and chunk.changed * _FEW <= len(chunk.new):
        ways = tuple(way for way in ways if way in ("sparse", "raw"))
        sample = None
    else:
        sample = _sample(chunk)
    return min(ways, key=lambda way: _bytes(way, chunk, sample, packer) / how.link_bytes_s * 1e9 + _ns(way, chunk))


def _allowed(chunk: Chunk, how: How) -> tuple[Way, ...]:
    if chunk.old is None:
        return ("shuffled", "raw")
    if how.incremental_threshold == "auto":
        return ("sparse", "dense", "shuffled", "raw")
    few = chunk.changed <= how.incremental_threshold * len(chunk.new)
    return ("sparse", "dense") if few else ("shuffled", "raw")


def _sample(chunk: Chunk) -> Chunk:
    words, wanted = len(chunk.new), _STRETCHES * _STRETCH_WORDS
    if words <= wanted:
        return chunk
    begins = np.linspace(0, words - _STRETCH_WORDS, _STRETCHES).astype(np.int64)
    where = (begins[:, None] + np.arange(_STRETCH_WORDS)).reshape(-1)
    return Chunk.of(None if chunk.old is None else chunk.old[where], chunk.new[where])


def _bytes(way: Way, chunk: Chunk, sample: Chunk | None, packer: Packer) -> float:
    """Return about how many bytes a chunk takes; what changes is counted, what it is like is the sample's."""
    raw = float(chunk.new.nbytes)
    if way == "raw":
        return raw
    if way == "shuffled" and sample is not None:
        return _told(way, sample, packer) * len(chunk.new) / len(sample.new)
    if sample is None or sample.changed < _SURE:
        # Changes lie where the sample did not look. A step of one and its place take two bytes; of all others all is told.
        return 2.0 * chunk.changed if way == "sparse" else raw
    return _told(way, sample, packer) * chunk.changed / sample.changed


def _told(way: Way, sample: Chunk, packer: Packer) -> float:
    return float(sum(sample.tell(way, packer)[0].stored))


def _ns(way: Way, chunk: Chunk) -> float:
    size = chunk.new.nbytes
    times: dict[Way, float] = {
        "sparse": _NS_A_WORD * len(chunk.new) + _NS_A_CHANGE * chunk.changed,
        "dense": _NS_A_DENSE_BYTE * size,
        "shuffled": _NS_A_SHUFFLED_BYTE * size,
        "raw": _NS_A_RAW_BYTE * size,
    }
    return times[way]
