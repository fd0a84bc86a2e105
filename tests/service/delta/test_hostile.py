"""A delta comes over a network: whatever it says, it is told as damaged, before memory is taken for it. C6"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.encode.digest import seal
from milepost.errors import CorruptError, MilepostError, MismatchError, UsageError
from milepost.service.delta import wire
from milepost.service.delta.applying import apply
from milepost.service.delta.encoding import encode
from milepost.service.delta.records import Delta, DeltaManifest, Piece, Tensor, TensorDelta
from milepost.service.delta.settings import How
from milepost.service.delta.wire import pack, parse
from tests.service.delta.sets import LIMIT, bytes_of, tensor

RNG = np.random.default_rng(3)
OLD = RNG.integers(0, 1 << 16, 1000, dtype=np.uint16)
NEW = OLD + (RNG.random(1000) < 0.05).astype(np.uint16)
BASE = {"w": tensor(OLD), "u": tensor(OLD.copy())}
VERSION = {"w": tensor(NEW), "u": tensor(RNG.integers(0, 1 << 16, 1000, dtype=np.uint16)), "v": tensor(NEW)}
SOUND = encode(BASE, VERSION, How(chunk_words=600))
WIRE = b"".join(pack(SOUND))


def damaged(delta: Delta | bytes, limit_bytes: int = LIMIT) -> CorruptError:
    """Parse and apply it, and return the one error that may come of it."""
    data = delta if isinstance(delta, bytes) else b"".join(pack(delta))
    with pytest.raises(CorruptError) as caught:
        apply(parse(data, limit_bytes=limit_bytes), BASE)
    assert caught.value.kind == "damaged-delta"
    assert str(caught.value)
    return caught.value


def changed(index: int = 0, piece: dict[str, Any] | None = None, **fields: Any) -> Delta:
    tensors = list(SOUND.manifest.tensors)
    if piece is not None:
        first, *rest = tensors[index].pieces
        fields["pieces"] = (replace(first, **piece), *rest)
    tensors[index] = replace(tensors[index], **fields)
    return replace(SOUND, manifest=replace(SOUND.manifest, tensors=tuple(tensors)))


def test_what_is_changed_here_is_sound_before() -> None:
    assert [told.tied_to for told in SOUND.manifest.tensors] == [None, None, "w"]
    assert SOUND.manifest.tensors[0].pieces[0].form == "sparse"
    assert bytes_of(apply(parse(WIRE, limit_bytes=6000), BASE)) == bytes_of(VERSION)


SIZES, TIES, CHANGES = (
    "a tensor's bytes are not as many as its shape has elements",
    "a tensor is tied to one that is no such tensor",
    "a piece has more changes than words",
)
WORDS, FORMS, COUNTS = (
    "a tensor is not made of words",
    "a piece has not the planes of its form",
    "a piece counts changes and tells none",
)
LIES: dict[str, tuple[str, Callable[[], Delta]]] = {
    "another format": ("it is of another format", lambda: replace(SOUND, manifest=replace(SOUND.manifest, format=2))),
    "chunks of nothing": (
        "its chunks have no such size",
        lambda: replace(SOUND, manifest=replace(SOUND.manifest, chunk_words=0)),
    ),
    "chunks of all": (
        "its chunks have no such size",
        lambda: replace(SOUND, manifest=replace(SOUND.manifest, chunk_words=1 << 40)),
    ),
    "a size beyond all memory": (WORDS, lambda: changed(size_bytes=1 << 62, shape=(1 << 61,))),
    "a size of more chunks": ("a tensor has not as many pieces as chunks", lambda: changed(size_bytes=1 << 50, shape=(1 << 49,))),
    "a size that is no size": (WORDS, lambda: changed(size_bytes=-2)),
    "a size of half a word": (WORDS, lambda: changed(size_bytes=1999, shape=(1999,))),
    "a shape of other bytes": (SIZES, lambda: changed(shape=(999,))),
    "a shape below zero": (SIZES, lambda: changed(shape=(-1, -1000))),
    "a shape of nothing": (SIZES, lambda: changed(shape=(0, 1 << 50))),
    "a shape of a million axes": (SIZES, lambda: changed(shape=(1 << 55,) * 300_000)),
    "words of three bytes": (WORDS, lambda: changed(word_bytes=3)),
    "words of none": (WORDS, lambda: changed(word_bytes=0)),
    "no pieces": ("a tensor has not as many pieces as chunks", lambda: changed(2, tied_to=None)),
    "a name twice": ("it has a tensor twice", lambda: changed(1, name="w")),
    "tied to nobody": (TIES, lambda: changed(2, tied_to="x")),
    "tied to itself": (TIES, lambda: changed(2, tied_to="v")),
    "tied to what is larger": (TIES, lambda: changed(2, shape=(500,), size_bytes=1000)),
    "tied, and told": (TIES, lambda: changed(2, pieces=(Piece("skip"), Piece("skip")))),
    "tied, against a base": (TIES, lambda: changed(2, base_digest=SOUND.manifest.tensors[0].base_digest)),
    "told against nothing": ("a piece needs a base, and its tensor names none", lambda: changed(base_digest="")),
    "no changes": (CHANGES, lambda: changed(piece={"changed": 0})),
    "changes below zero": (CHANGES, lambda: changed(piece={"changed": -5})),
    "more changes than words": (CHANGES, lambda: changed(piece={"changed": 601, "gaps": 601})),
    "changes beyond counting": (CHANGES, lambda: changed(piece={"changed": 1 << 62, "gaps": 1 << 62})),
    "fewer gaps than changes": (CHANGES, lambda: changed(piece={"gaps": 1})),
    "gaps beyond the words": (CHANGES, lambda: changed(piece={"gaps": 600})),
    "gaps beyond counting": (CHANGES, lambda: changed(piece={"gaps": 1 << 62})),
    "planes of nothing": ("it ends within its planes", lambda: changed(piece={"stored": (0, 0, 0)})),
    "planes beyond the delta": ("it ends within its planes", lambda: changed(1, {"stored": (1 << 40,)})),
    "planes of another form": (FORMS, lambda: changed(piece={"form": "dense", "changed": 0, "gaps": 0})),
    "a skip with changes": (COUNTS, lambda: changed(piece={"form": "skip"})),
    "a skip with planes": (FORMS, lambda: changed(piece={"form": "skip", "changed": 0, "gaps": 0})),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused_before_memory_is_taken(lie: str) -> None:
    why, make = LIES[lie]
    data = b"".join(pack(make()))
    tracemalloc.start()
    try:
        assert damaged(data).facts["why"] == why
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data) + 300_000
    finally:
        tracemalloc.stop()


def test_planes_that_no_piece_tells_of_are_refused() -> None:
    with pytest.raises(CorruptError, match="more planes than it says"):
        apply(replace(SOUND, planes=(*SOUND.planes, b"x")), BASE)
    with pytest.raises(CorruptError, match="not as long as it says"):
        apply(replace(SOUND, planes=SOUND.planes[:-1]), BASE)


def test_a_base_of_another_size_is_none_though_its_digest_is_the_one_that_is_named() -> None:
    piece = Piece("sparse", (1, 1, 1), changed=1, gaps=1)
    for elements in (1, 999, 1001):
        digest = SOUND.manifest.tensors[0].base_digest
        told = TensorDelta("w", "uint16", (elements,), 2 * elements, 2, digest, digest, pieces=(piece,))
        lie = Delta(DeltaManifest(2000, (told,)), (b"\0", b"\2", b"\0"))
        with pytest.raises(MismatchError):
            apply(parse(b"".join(pack(lie)), limit_bytes=LIMIT), BASE)


def test_a_version_that_is_larger_than_it_may_be_is_refused() -> None:
    assert damaged(WIRE, 3999).facts["size_bytes"] == 4000
    assert bytes_of(apply(parse(WIRE, limit_bytes=4000), BASE)) == bytes_of(VERSION)


def test_a_frame_that_would_fill_the_memory_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    silent = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(64 << 20))
    for one in (bomb, silent):
        told = TensorDelta("w", "uint8", (9000,), 9000, 1, "0" * 32, pieces=(Piece("full", (len(one),)),))
        delta = Delta(DeltaManifest(9000, (told,)), (one,))
        tracemalloc.start()
        try:
            damaged(delta)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def test_positions_that_lie_beyond_their_chunk_are_refused() -> None:
    digest = SOUND.manifest.tensors[0].base_digest
    for gaps in (b"\xfe\xfe\xfe\xfe", b"\x01\xff\x02\x03", b"\xff\xff\xff\xff"):
        planes = (gaps, b"\x02" * 3, bytes(3))
        piece = Piece("sparse", (4, 3, 3), changed=3, gaps=4)
        told = TensorDelta("w", "uint16", (1000,), 2000, 2, digest, digest, pieces=(piece,))
        damaged(Delta(DeltaManifest(1000, (told,)), planes))


@given(st.integers(0, len(WIRE) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_found_or_changes_nothing(where: int, by: int) -> None:
    flipped = bytearray(WIRE)
    flipped[where] ^= by
    try:
        made = apply(parse(flipped, limit_bytes=LIMIT), BASE)
    except CorruptError as error:
        assert error.kind == "damaged-delta"  # noqa: PT017 - no error is fine, too
    else:
        assert bytes_of(made) == bytes_of(VERSION)


@given(st.integers(0, len(WIRE) - 1), st.binary(max_size=20))
def test_a_delta_that_is_cut_off_or_longer_is_damaged(length: int, more: bytes) -> None:
    damaged(WIRE[:length])
    damaged(WIRE + b"\0" + more)


numbers = st.integers(-2, 5) | st.sampled_from([600, 1000, 2000, 1 << 31, 1 << 32, (1 << 63) - 1])
pieces = st.builds(
    Piece, st.sampled_from(["skip", "sparse", "dense", "full"]), st.lists(numbers, max_size=3).map(tuple), numbers, numbers
)
told = st.builds(
    TensorDelta,
    st.sampled_from(["w", "u", "x"]),
    st.sampled_from(["uint16", "complex64"]),
    st.lists(numbers, max_size=2).map(tuple),
    numbers,
    numbers,
    st.just("0" * 32),
    st.sampled_from(["", SOUND.manifest.tensors[0].base_digest]),
    st.sampled_from([None, None, "w", "u"]),
    st.lists(pieces, max_size=2).map(tuple),
)


@given(numbers, st.lists(told, max_size=3), st.lists(st.binary(max_size=8), max_size=4))
def test_no_manifest_makes_anything_but_an_error_of_ours(
    chunk_words: int, tensors: list[TensorDelta], planes: list[bytes]
) -> None:
    delta = Delta(DeltaManifest(chunk_words, tuple(tensors)), tuple(planes))
    for attempt in (lambda: delta, lambda: parse(b"".join(pack(delta)), limit_bytes=1 << 20)):
        try:
            apply(attempt(), BASE)
        except MilepostError as error:
            assert error.kind in ("damaged-delta", "wrong-base")  # noqa: PT017 - no error is fine, too


@settings(max_examples=40)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_any_record_in_the_place_of_a_manifest_is_damaged(value: Any) -> None:
    for body in ({"chunk_words": value, "tensors": []}, {"tensors": [value]}, {"chunk_words": 5, "tensors": value}, {"x": value}):
        record = seal(json.dumps(body, separators=(",", ":")).encode())
        data = WIRE[:8] + len(record).to_bytes(8, "little") + record + b"x"
        damaged(data)


def test_bytes_in_the_place_of_a_manifest_are_damaged() -> None:
    for record in (b"", b"{}", b"[" * 100_000, b"\xff" * 50, seal(b'{"chunk_words":' + b"9" * 5000 + b',"tensors":[]}')):
        damaged(WIRE[:8] + len(record).to_bytes(8, "little") + record)
    damaged(WIRE[:8] + (1 << 63).to_bytes(8, "little") + WIRE[16:])
    damaged(b"PK\x03\x04" + WIRE[4:])


def test_a_manifest_of_absurd_length_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_MANIFEST_BYTES", 100)
    with pytest.raises(UsageError, match="too many chunks"):
        list(pack(SOUND))
    assert damaged(WIRE).facts["why"] == "its manifest is longer than it, or than any"


def test_a_tensor_whose_bytes_are_not_those_of_its_shape_is_refused() -> None:
    for shape, size in (((3,), 10), ((0,), 1), ((-1, -4), 4)):
        with pytest.raises(UsageError, match="not as many"):
            Tensor("uint8", shape, bytes(size))
