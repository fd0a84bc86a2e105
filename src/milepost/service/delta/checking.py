"""Check what a delta says of itself, before a byte of memory is taken for it: it came over a network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from milepost.errors import CorruptError
from milepost.service.delta.forms import raw_sizes
from milepost.service.delta.records import FORMAT, MOST_CHUNK_WORDS, Delta, DeltaManifest, TensorDelta, fits
from milepost.service.delta.words import most_gaps

_MOST_BYTES = 1 << 60


def damaged(why: str, **facts: object) -> CorruptError:
    """Return the error for a delta that nobody has encoded so."""
    return CorruptError("a delta is damaged", kind="damaged-delta", hint="ask for the version whole", why=why, **facts)


def check(delta: Delta, limit_bytes: int | None = None) -> None:
    """Raise `CorruptError` (kind ``damaged-delta``) unless all that a delta says fits together, and into ``limit_bytes``."""
    manifest = delta.manifest
    if manifest.format != FORMAT:
        raise damaged("it is of another format", format=manifest.format)
    if not 1 <= manifest.chunk_words <= MOST_CHUNK_WORDS:
        raise damaged("its chunks have no such size", chunk_words=manifest.chunk_words)
    sizes = iter(delta.planes)
    before: dict[str, TensorDelta] = {}
    for tensor in manifest.tensors:
        if tensor.name in before:
            raise damaged("it has a tensor twice", tensor=tensor.name)
        why = _tensor(tensor, manifest, before)
        if why:
            raise damaged(why, tensor=tensor.name)
        stored = [size for piece in tensor.pieces for size in piece.stored]
        if stored != [len(plane) for plane in islice(sizes, len(stored))]:
            raise damaged("its planes are not as long as it says", tensor=tensor.name)
        before[tensor.name] = tensor
    if next(sizes, None) is not None:
        raise damaged("it has more planes than it says")
    if limit_bytes is not None and manifest.size_bytes > limit_bytes:
        raise damaged("it makes more bytes than it may", size_bytes=manifest.size_bytes, limit_bytes=limit_bytes)


def _tensor(tensor: TensorDelta, manifest: DeltaManifest, before: dict[str, TensorDelta]) -> str:
    if tensor.word_bytes not in (1, 2, 4, 8) or not 0 <= tensor.size_bytes < _MOST_BYTES or tensor.size_bytes % tensor.word_bytes:
        return "a tensor is not made of words"
    if not fits(tensor.shape, tensor.size_bytes):
        return "a tensor's bytes are not as many as its shape has elements"
    if tensor.tied_to is not None:
        twin = before.get(tensor.tied_to)
        if twin is None or tensor.pieces or tensor.base_digest or _likeness(twin) != _likeness(tensor):
            return "a tensor is tied to one that is no such tensor"
        return ""
    chunks = list(_chunks(tensor, manifest.chunk_words))
    if len(tensor.pieces) != len(chunks):
        return "a tensor has not as many pieces as chunks"
    return next((why for number, words in enumerate(chunks) if (why := _piece(tensor, number, words))), "")


def _likeness(tensor: TensorDelta) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.size_bytes, tensor.word_bytes, tensor.digest


def _chunks(tensor: TensorDelta, chunk_words: int) -> Iterator[int]:
    """Yield how many words each chunk has; no more than one beyond the pieces that there are, whatever size is claimed."""
    words = tensor.size_bytes // tensor.word_bytes
    for start in islice(range(0, words, chunk_words), len(tensor.pieces) + 1):
        yield min(chunk_words, words - start)


def _piece(tensor: TensorDelta, number: int, words: int) -> str:
    piece = tensor.pieces[number]
    if piece.form != "full" and not tensor.base_digest:
        return "a piece needs a base, and its tensor names none"
    if piece.form == "sparse":
        if not 1 <= piece.changed <= words or not piece.changed <= piece.gaps <= most_gaps(piece.changed, words):
            return "a piece has more changes than words"
    elif piece.changed or piece.gaps:
        return "a piece counts changes and tells none"
    raw = raw_sizes(piece, words, tensor.word_bytes)
    if len(raw) != len(piece.stored):
        return "a piece has not the planes of its form"
    return ""
