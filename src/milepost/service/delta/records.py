"""Hold the words of a delta: tensors as bytes, how each chunk of a new one is told, and what must be there before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.encode.digest import Buffer
from milepost.errors import UsageError

Form: TypeAlias = Literal["skip", "sparse", "dense", "full"]
"""``skip``: as in the base. ``sparse``: where words changed, and by how much. ``dense``: by how much each word changed.
``full``: the words themselves."""

FORMAT = 1
MOST_CHUNK_WORDS = 16 << 20
"""A position within a chunk stays far below 2^32, however large a tensor is; and so does what a reader unpacks at once."""
_MOST_AXES, _MOST_LENGTH = 64, 1 << 56


@dataclass(frozen=True, slots=True)
class Tensor:
    """Be one tensor as bytes: C-contiguous, in the byte order of little-endian machines. Nothing here writes to ``data``."""

    dtype: str
    """The dtype's own name, as in `milepost.records.LeafSpec`."""
    shape: tuple[int, ...]
    data: Buffer

    def __post_init__(self) -> None:
        if not fits(self.shape, self.size_bytes):
            raise UsageError(
                "a tensor's bytes are not as many as its shape has elements",
                kind="bad-tensor",
                hint="give the bytes of a contiguous tensor, and the shape that it has",
                shape=self.shape,
                size_bytes=self.size_bytes,
            )

    @property
    def size_bytes(self) -> int:
        """Return how many bytes it has."""
        return memoryview(self.data).nbytes

    @property
    def word_bytes(self) -> int:
        """Return the width of what is compared: an element, half a complex one; a byte where no integer is as wide."""
        elements = math.prod(self.shape)
        item = self.size_bytes // elements if elements else 1
        if self.dtype.startswith("complex"):
            item //= 2
        return item if item in (1, 2, 4, 8) else 1

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Tensors: TypeAlias = Mapping[str, Tensor]


def fits(shape: tuple[int, ...], size_bytes: int) -> bool:
    """Return whether so many bytes can be elements of this shape."""
    # Before they are multiplied: a million lengths that somebody has made up have a product that takes hours.
    if len(shape) > _MOST_AXES or not all(0 <= length < _MOST_LENGTH for length in shape):
        return False
    elements = math.prod(shape)
    return size_bytes % elements == 0 if elements else size_bytes == 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Tell one chunk of a tensor."""

    form: Form
    stored: tuple[int, ...] = ()
    """The bytes of each of its planes as they are stored: a zstd frame, or the plane itself where that is no larger."""
    changed: int = 0
    """Of a sparse one, how many words changed."""
    gaps: int = 0
    """Of a sparse one, how many bytes say where; see `milepost.service.delta.words.gaps_of`."""


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """Tell one tensor of the new version."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    word_bytes: int
    digest: str
    """Of its bytes in the new version."""
    base_digest: str = ""
    """Of the bytes that the base must have under this name. Empty: it needs none."""
    tied_to: str | None = None
    """The tensor before it in whose memory it lies. It has no pieces of its own then."""
    pieces: tuple[Piece, ...] = ()
    """One for each chunk, in order."""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class DeltaManifest:
    """Name every tensor of the new version. What the base has beyond them is no longer there."""

    chunk_words: int
    tensors: tuple[TensorDelta, ...]
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """Return how much memory the new version takes; what is tied counts once."""
        return sum(tensor.size_bytes for tensor in self.tensors if tensor.tied_to is None)

    @property
    def forms(self) -> Mapping[Form, int]:
        """Return how many chunks are told in which form."""
        return Counter(piece.form for tensor in self.tensors for piece in tensor.pieces)


@dataclass(frozen=True, slots=True)
class Delta:
    """Be a new version, told against a base. It holds no memory of who encoded it."""

    manifest: DeltaManifest
    planes: tuple[Buffer, ...]
    """As stored, in the order of tensors, pieces and planes."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes its planes have."""
        return sum(len(plane) for plane in self.planes)
