"""Encode a new version of the weights against an old one: pure, and nothing of either is kept or changed.

There is no snapshot here that could run ahead of what readers have: the base is whatever the caller gives, each time, and that
is a version of which it is known that it was published.
"""

from __future__ import annotations

from collections.abc import Iterator

from milepost.encode.digest import digest_of
from milepost.service.delta.choosing import Chunk, choose
from milepost.service.delta.forms import Packer, Told
from milepost.service.delta.records import Delta, DeltaManifest, Piece, Tensor, TensorDelta, Tensors
from milepost.service.delta.settings import How
from milepost.service.delta.words import Words, words_in

_DEFAULT = How()


def encode(base: Tensors, new: Tensors, how: How = _DEFAULT) -> Delta:
    """Tell ``new`` against ``base``; against nothing, ``{}``, it is told whole.

    Tensors may come, go, and change shape or dtype. Those that lie in the same memory are told once, and come back in the same
    memory. Nobody may write to either set meanwhile; a delta of weights that were being trained is refused by who applies it.
    """
    delta = encode_within(base, new, how, None)
    assert delta is not None
    return delta


def encode_within(base: Tensors, new: Tensors, how: How, limit_bytes: int | None) -> Delta | None:
    """Do as `encode`, and give up with None as soon as the planes have more than ``limit_bytes``."""
    packer = Packer()
    told: list[TensorDelta] = []
    planes: list[bytes] = []
    left = limit_bytes
    seen: dict[tuple[int, int, str, tuple[int, ...]], TensorDelta] = {}
    for name, tensor in new.items():
        place = (_address(tensor), tensor.size_bytes, tensor.dtype, tensor.shape)
        twin = seen.get(place)
        if twin is not None and tensor.size_bytes:
            told.append(_record(name, tensor, twin.digest, tied_to=twin.name))
            continue
        one = _tensor(name, base.get(name), tensor, how, packer, left)
        if one is None:
            return None
        seen[place], stored = one
        told.append(seen[place])
        planes += stored
        left = None if left is None else left - sum(map(len, stored))
    return Delta(DeltaManifest(how.chunk_words, tuple(told)), tuple(planes))


def _record(
    name: str, tensor: Tensor, digest: str, *, base_digest: str = "", tied_to: str | None = None, pieces: tuple[Piece, ...] = ()
) -> TensorDelta:
    return TensorDelta(
        name, tensor.dtype, tensor.shape, tensor.size_bytes, tensor.word_bytes, digest, base_digest, tied_to, pieces
    )


def _tensor(
    name: str, base: Tensor | None, new: Tensor, how: How, packer: Packer, left_bytes: int | None
) -> tuple[TensorDelta, list[bytes]] | None:
    if base is not None and (base.dtype, base.size_bytes) != (new.dtype, new.size_bytes):
        base = None
    # First: words that change while they are told have another digest than what was told of them, and that is found.
    digest = digest_of(new.data, strong=how.strong)
    pieces: list[Piece] = []
    planes: list[bytes] = []
    for piece, stored in _pieces(base, new, how, packer):
        pieces.append(piece)
        planes += stored
        if left_bytes is not None:
            left_bytes -= sum(piece.stored)
            if left_bytes < 0:
                return None
    base_digest = ""
    if base is not None and any(piece.form != "full" for piece in pieces):
        base_digest = digest_of(base.data, strong=how.strong)
    return _record(name, new, digest, base_digest=base_digest, pieces=tuple(pieces)), planes


def _pieces(base: Tensor | None, new: Tensor, how: How, packer: Packer) -> Iterator[Told]:
    words = words_in(new.data, new.word_bytes)
    old = None if base is None else words_in(base.data, new.word_bytes)
    for start in range(0, len(words), how.chunk_words):
        stop = start + how.chunk_words
        yield _chunk(None if old is None else old[start:stop], words[start:stop], how, packer)


def _chunk(old: Words | None, new: Words, how: How, packer: Packer) -> Told:
    chunk = Chunk.of(old, new)
    if not chunk.changed:
        return Piece("skip"), []
    return chunk.tell(choose(chunk, how, packer), packer)


def _address(tensor: Tensor) -> int:
    return int(words_in(tensor.data, 1).__array_interface__["data"][0])
