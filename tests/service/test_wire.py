"""What one side says the other reads, and what nobody may say is refused."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConflictError, MilepostError, NotFoundError, ServiceError, StoreError, UsageError
from milepost.records import Version
from milepost.service import wire
from milepost.service.core.events import Caller, Refused
from milepost.service.core.records import Commit, Shard, Weights
from milepost.service.index import Chunks, place_of_weights
from milepost.service.proto import service_pb2 as pb
from milepost.store.posix import failures_of

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=128).filter(str.isprintable)
slots = st.text("abcxyz019", min_size=1, max_size=20)
commits = st.builds(Commit, st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))


@st.composite
def versions(draw: st.DrawFn) -> tuple[Weights, dict[str, Chunks]]:
    chunks = {slot: Chunks.of(draw(st.binary(max_size=40)), 16) for slot in draw(st.sets(slots, max_size=4))}
    weights = Weights(
        at=draw(commits),
        version=Version(draw(names), draw(st.integers(-(2**63), 2**63 - 1)), draw(st.integers(0, 2**63 - 1))),
        shards=tuple(Shard(slot, each.size_bytes, each.digest) for slot, each in sorted(chunks.items())),
        parent=draw(st.none() | commits),
        producer=draw(names),
        incarnation=draw(names),
        key=draw(names),
    )
    return weights, chunks


@given(versions())
def test_a_version_is_read_as_it_was_said(version: tuple[Weights, dict[str, Chunks]]) -> None:
    weights, chunks = version
    said = pb.Weights.FromString(wire.pack_weights(weights, chunks).SerializeToString())
    assert wire.unpack_weights(said) == wire.Told(weights, chunks, place_of_weights(weights))


@given(versions())
def test_where_its_bytes_lie_is_not_taken_from_the_wire(version: tuple[Weights, dict[str, Chunks]]) -> None:
    said = wire.pack_weights(*version)
    said.place = "../../etc"
    assert wire.unpack_weights(said).place == place_of_weights(version[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slot", "../up"),
        ("slot", ""),
        ("slot", "a.from-3"),
        ("size_bytes", 2**64 - 1),
        ("size_bytes", 49),
        ("digest", "0" * 32),
        ("chunk_bytes", 0),
        ("chunk_bytes", 2**32 - 1),
        ("chunk_digests", b"x"),
    ],
)
def test_a_part_that_cannot_be_is_refused(field: str, value: object) -> None:
    shard = wire.pack_shard("weights", Chunks.of(bytes(40), 16))
    setattr(shard, field, value)
    with pytest.raises(UsageError) as caught:
        wire.unpack_shard(shard)
    assert caught.value.kind == "bad-message"


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 129, "\x00"])
def test_a_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(UsageError):
        wire.unpack_caller(pb.Caller(component=name, incarnation="i"))
    with pytest.raises(UsageError):
        wire.unpack_caller(pb.Caller(component="c", incarnation=name))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("superseded", ConflictError),
        ("unknown-version", NotFoundError),
        ("key-reused", UsageError),
        ("not-written", StoreError),
        ("held", ServiceError),
        ("a-kind-of-later", ServiceError),
    ],
)
def test_a_refusal_is_raised_as_the_error_that_says_what_to_do(kind: str, error: type[MilepostError]) -> None:
    facts = {"version": "v3", "kind": "x", "self": "y", "hint": "z", "none": None}
    refused = wire.unpack_refused(wire.pack_refused(Refused(kind, "it is so", "do this", facts)))
    raised = wire.error_of(refused)
    assert type(raised) is error
    assert (raised.kind, raised.message, raised.hint, dict(raised.facts)) == (kind, "it is so", "do this", {"version": "v3"})
    assert wire.refused_of(raised).kind == kind


@given(st.dictionaries(st.text(max_size=2000), st.text(max_size=5000), max_size=40), st.text(max_size=5000))
def test_a_refusal_has_room_in_metadata(facts: dict[str, str], message: str) -> None:
    assert len(wire.pack_refused(Refused("kind", message, message, facts))) < 7000


@given(st.none() | commits)
def test_which_version_is_read_as_it_was_said(at: Commit | None) -> None:
    assert wire.unpack_commit(pb.ReleaseRequest(at=wire.pack_commit(at)).at) == at


def test_who_calls_is_read_as_it_was_said() -> None:
    caller = Caller("sampler/3 é", "1f")
    assert wire.unpack_caller(wire.pack_caller(caller)) == caller


def test_a_full_disk_is_refused_in_the_words_of_a_service() -> None:
    with pytest.raises(StoreError) as full, failures_of("write", "there"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "generations" in full.value.hint
    assert wire.refused_of(full.value).hint == "free some space, or keep fewer versions: milepost serve --disk-keep"
