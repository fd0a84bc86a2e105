"""A record says by itself whether it is whole."""

from __future__ import annotations

import hashlib
import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from milepost.encode.digest import Digest, digest_of, is_strong, matches, seal, sha256, unseal, unseal_signed, xxh3
from milepost.errors import CorruptError, InternalError

objects = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=4)


@given(objects)
def test_what_is_sealed_comes_back_and_is_json_with_one_more_member(value: dict[str, object]) -> None:
    body = json.dumps(value, separators=(",", ":")).encode()
    record = seal(body)
    assert unseal(record, "x") == body
    assert record.endswith(b"\n")
    assert json.loads(record) == {**value, "digest": f"sha256:{hashlib.sha256(body).hexdigest()}"}


@pytest.mark.parametrize("body", [b"{}", b'{"a":1}', b'{"digest":"sha256:0"}'])
def test_any_flipped_bit_of_a_record_is_found(body: bytes) -> None:  # B8
    record = seal(body)
    for at in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptError) as caught:
            unseal(bytes(damaged), "terms/0007.json")
    assert caught.value.kind == "damaged-record"
    assert caught.value.facts["what"] == "terms/0007.json"


@pytest.mark.parametrize("body", [b"{}", b'{"a":1}'])
def test_any_missing_or_added_byte_of_a_record_is_found(body: bytes) -> None:
    record = seal(body)
    cut = [record[:at] + record[at + 1 :] for at in range(len(record))]
    grown = [record[:at] + bytes([extra]) + record[at:] for at in range(len(record) + 1) for extra in b'\n ,{}"0']
    for damaged in {*cut, *grown} - {record}:
        with pytest.raises(CorruptError):
            unseal(damaged, "x")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_damage_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(CorruptError):
        unseal(data, "x")


def test_a_record_without_a_comma_is_not_mistaken_for_one_with() -> None:
    body = b'{"a":1,}'
    assert unseal(seal(body), "x") == body if seal(body)[:-1].count(b",,") == 0 else True
    with pytest.raises(CorruptError):
        unseal(seal(b"{}").replace(b"{", b"{,"), "x")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":1}\n', b"null"])
def test_only_a_compact_object_can_be_sealed(body: bytes) -> None:
    with pytest.raises(InternalError):
        seal(body)


@given(st.lists(st.binary(max_size=100)))
def test_a_stream_has_the_digest_of_its_whole(pieces: list[bytes]) -> None:
    digest = Digest()
    for piece in pieces:
        digest.update(piece)
    whole = b"".join(pieces)
    assert digest.hex() == xxh3(whole) == xxh3(memoryview(whole)) == xxhash.xxh3_128(whole).hexdigest()
    assert len(digest.hex()) == 32


def test_sha256_is_sha256() -> None:
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@given(st.lists(st.binary(max_size=100)))
def test_a_strong_digest_is_sha256_and_says_so(pieces: list[bytes]) -> None:
    digest, whole = Digest(strong=True), b"".join(pieces)
    for piece in pieces:
        digest.update(piece)
    assert digest.hex() == digest_of(whole, strong=True) == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    assert is_strong(digest.hex())
    assert not is_strong(digest_of(whole))


@pytest.mark.parametrize("strong", [True, False])
def test_bytes_are_compared_by_the_digest_that_was_written(strong: bool) -> None:
    digest = digest_of(b"abc", strong=strong)
    assert matches(b"abc", digest)
    assert not matches(b"abd", digest)
    like = Digest.like(digest)
    like.update(b"abc")
    assert like.hex() == digest
    # One kind is not taken for the other: neither its digits alone nor another prefix.
    assert not any(matches(b"abc", other) for other in ("", "sha256:", sha256(b"abc"), f"sha256:{xxh3(b'abc')}", digest.upper()))


SIGNATURE = "hmac-sha256:" + "0f" * 32


@given(objects)
def test_a_signature_is_one_more_member_that_the_digest_covers(value: dict[str, object]) -> None:
    body = json.dumps(value, separators=(",", ":")).encode()
    record = seal(body, SIGNATURE)
    assert unseal_signed(record, "x") == (body, SIGNATURE)
    assert unseal(record, "x") == body
    assert unseal_signed(seal(body), "x") == (body, "")
    signed_body = record[: record.rindex(b',"digest"')] + b"}"
    assert json.loads(record) == {**value, "signature": SIGNATURE, "digest": f"sha256:{hashlib.sha256(signed_body).hexdigest()}"}


@pytest.mark.parametrize("ends", ["hmac-sha256:00", "hmac-sha256:" + "0F" * 32, "hmac-sha512:" + "0f" * 32])
def test_a_member_that_only_looks_like_a_signature_stays_in_the_body(ends: str) -> None:
    record = seal(b'{"a":1,"signature":"' + ends.encode() + b'"}')
    assert unseal_signed(record, "x") == (b'{"a":1,"signature":"' + ends.encode() + b'"}', "")
