"""Each call of the protocol over a real socket: what it answers, and what is refused, with kind and hint. C1, C2, C4, C16"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from milepost.service import wire
from milepost.service.index import Chunks, blob_of
from milepost.service.proto import service_pb2 as pb
from tests.service.server.conftest import Hall, until
from tests.service.server.speaking import CHUNK, Speaker, refusal

DATA = bytes(range(256)) * 2


def refused(call: Callable[[], Any]) -> str:
    """Return the kind of the refusal that a call ends with; what it says has a hint, and no newline."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    said = refusal(caught.value)
    assert said.message
    assert said.hint
    assert said.kind in caught.value.details()  # type: ignore[attr-defined]  # for who reads only that
    return said.kind


def test_a_commit_is_visible_whole_and_comes_back_byte_for_byte(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    assert sampler.fetch().not_modified == pb.NotModified()
    done = trainer.commit("k", 7, {"weights": DATA, "empty": b""})
    assert (done.weights.step, done.weights.key, done.weights.producer) == (7, "k", "trainer")
    taken = sampler.fetch().take
    assert taken.weights == done.weights
    assert [source.transport for source in taken.sources[:1]] == ["shm"]
    assert {"bulk", "grpc"} <= {source.transport for source in taken.sources}
    assert sampler.download(taken.weights) == DATA
    assert sampler.download(taken.weights, offset=100, size_bytes=50) == DATA[100:150]
    assert sampler.download(taken.weights, "empty") == b""
    assert sampler.fetch(taken.weights.at).not_modified.at == taken.weights.at


def test_it_is_durable_when_that_was_waited_for(served: Hall) -> None:
    trainer = served.trainer()
    assert trainer.commit("k", 7, {"weights": DATA}, durable=True).durable
    assert trainer.status().durable.at == pb.Commit(term=1, number=1)


def test_a_part_that_was_brought_through_shared_memory_counts_as_any(served: Hall) -> None:
    trainer = served.trainer()
    (sink, *_) = trainer.begin("k", 7, {"weights": DATA}).sinks
    assert sink.transport == "shm"
    place = served.shm / sink.address.rpartition("/")[2] / trainer.place
    place.mkdir()
    (place / blob_of("weights")).write_bytes(DATA)
    trainer.arrived("k", "weights", DATA)
    assert trainer.finish("k").weights.at.number == 1


def test_all_may_be_said_again(served: Hall) -> None:
    trainer = served.trainer()
    for _ in range(2):
        trainer.hello()
        bring = trainer.begin("k", 7, {"weights": DATA})
        if bring.slots:
            trainer.upload("weights", DATA)
            trainer.upload("weights", DATA)
        for _ in range(2):
            trainer.arrived("k", "weights", DATA)
            done = trainer.finish("k")
    assert done.weights.at.number == 1
    for _ in range(2):
        trainer.say("Link", pb.LinkRequest(caller=trainer.caller, at=done.weights.at, generation=4))
        trainer.say("Release", pb.ReleaseRequest(caller=trainer.caller, at=done.weights.at))
        trainer.say("Abort", pb.AbortRequest(caller=trainer.caller, key="k", reason="late"))
    assert trainer.status().versions[0].generation == 4


def test_who_waits_for_news_gets_it_and_who_waits_in_vain_hears_so(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    waiting = sampler.stub.Fetch.future(
        pb.FetchRequest(caller=sampler.caller, wait_ms=60_000), metadata=sampler.metadata, timeout=60
    )
    done = trainer.commit("k", 7, {"weights": DATA})
    assert waiting.result().take.weights.at == done.weights.at
    assert sampler.fetch(done.weights.at, wait_ms=20).HasField("not_modified")


def test_a_watcher_hears_what_the_pointers_are_and_why(served: Hall) -> None:
    trainer, watcher = served.trainer(), served.sampler()
    news = watcher.say("Watch", pb.WatchRequest(caller=watcher.caller))
    assert (next(news).reason, watcher.status().live.key) == ("began", "")
    trainer.commit("k1", 1, {"weights": DATA}, durable=True)
    heard = [next(news)]
    while heard[-1].durable.number != 1:
        heard.append(next(news))
    assert {each.reason for each in heard} <= {"committed", "durable"}
    assert heard[-1].live.at.number == 1
    trainer.commit("k2", 2, {"weights": DATA}, durable=True)
    while next(news).durable.number != 2:
        pass
    trainer.say("RollBack", pb.RollBackRequest(number=1, reason="it diverged"))
    back = next(news)
    assert (back.reason, back.live.at.number) == ("rolled back", 1)
    news.cancel()


def test_a_rollback_that_is_said_again_after_the_next_commit_does_not_take_that_back(served: Hall) -> None:
    trainer = served.trainer()
    first = trainer.commit("k1", 1, {"weights": DATA}, durable=True).weights.at
    trainer.commit("k2", 2, {"weights": DATA})
    back = pb.RollBackRequest(number=1, reason="it diverged", caller=trainer.caller, key="r1")
    trainer.say("RollBack", back)
    third = trainer.commit("k3", 2, {"weights": DATA}, parent=first)
    trainer.say("RollBack", back)
    assert trainer.status().live.at == third.weights.at


def test_while_a_trainer_holds_nobody_is_given_weights(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    trainer.commit("k1", 1, {"weights": DATA})
    trainer.say("Hold", pb.HoldRequest(caller=trainer.caller))
    beat = sampler.say("Heartbeat", pb.HeartbeatRequest(caller=sampler.caller))
    assert (beat.is_held, beat.live.number, sampler.status().is_held_by) == (True, 1, "trainer")
    assert refused(sampler.fetch) == "held"
    second = trainer.commit("k2", 1, {"weights": DATA[:100]})
    trainer.say("Resume", pb.ResumeRequest(caller=trainer.caller))
    assert sampler.fetch().take.weights.at == second.weights.at


def test_an_answer_that_nobody_heard_is_held_by_nobody_once_the_reader_has_said_twice_what_it_has(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    trainer.commit("k1", 1, {"weights": DATA})
    at = sampler.fetch().take.weights.at
    for reads, readers in (((), 1), ((at,), 1), ((), 1), ((), 0), ((at,), 1)):
        sampler.say("Heartbeat", pb.HeartbeatRequest(caller=sampler.caller, reads=reads, tells_reads=True))
        assert trainer.status().versions[0].readers == readers
    sampler.say("Heartbeat", pb.HeartbeatRequest(caller=sampler.caller))
    assert trainer.status().versions[0].readers == 1


def test_who_says_goodbye_reads_nothing_any_more(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    trainer.commit("k1", 1, {"weights": DATA})
    sampler.fetch()
    assert trainer.status().versions[0].readers == 1
    sampler.say("Goodbye", pb.GoodbyeRequest(caller=sampler.caller))
    assert trainer.status().versions[0].readers == 0


def test_a_damaged_chunk_is_named_and_that_chunk_alone_is_brought_again(served: Hall) -> None:
    trainer = served.trainer()
    trainer.begin("k", 7, {"weights": DATA})
    bent = bytearray(DATA)
    bent[3 * CHUNK] ^= 1
    trainer.upload("weights", bytes(bent))
    with pytest.raises(grpc.RpcError) as caught:
        trainer.arrived("k", "weights", DATA)
    said = refusal(caught.value)
    assert (said.kind, dict(said.facts)) == ("damaged-shard", {"slot": "weights", "chunks": "3", "damaged": "1", "of": "8"})
    assert refused(lambda: trainer.finish("k", wait_ms=1)) == "commit-timeout"  # nobody has seen anything of it
    right = pb.Piece(
        caller=trainer.caller, place=trainer.place, blob=blob_of("weights"), offset=3 * CHUNK, data=DATA[3 * CHUNK : 4 * CHUNK]
    )
    trainer.say("Upload", iter([right]))
    trainer.arrived("k", "weights", DATA)
    assert trainer.finish("k").weights.at.number == 1


def test_a_part_that_has_arrived_is_written_no_more(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    trainer.begin("k", 7, {"weights": DATA, "optimizer": DATA})
    trainer.upload("weights", DATA)
    trainer.arrived("k", "weights", DATA)
    assert refused(lambda: trainer.upload("weights", bytes(len(DATA)))) == "not-missing"
    trainer.upload("optimizer", DATA)
    trainer.arrived("k", "optimizer", DATA)
    done = trainer.finish("k")
    assert refused(lambda: trainer.upload("weights", bytes(len(DATA)))) == "unknown-commit"
    assert sampler.download(done.weights) == DATA


def test_a_delta_is_offered_where_it_is_less_and_nothing_where_a_version_is_not_there(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    big = bytes(1 << 17)
    first = trainer.commit("k1", 1, {"weights": big}).weights.at
    sampler.fetch()
    second = trainer.commit("k2", 2, {"weights": big[:-1] + b"\1"}).weights.at
    said = {"caller": sampler.caller, "base": first, "at": second, "slots": ["weights", "none"], "link_bytes_s": 1e6}
    (told,) = sampler.say("Offer", pb.OfferRequest(**said)).told
    assert told.slot == "weights"
    assert told.blob.size_bytes < 1 << 12
    asked = {"blob": told.blob.slot, "size_bytes": told.blob.size_bytes}
    delta = sampler.download(sampler.fetch().take.weights, **asked)
    assert Chunks.of(delta, told.blob.chunk_bytes).digest == told.blob.digest
    said["base"] = pb.Commit(term=1, number=9)
    assert not sampler.say("Offer", pb.OfferRequest(**said)).told


# What is refused.


def _begin(**changed: Any) -> Callable[[Speaker], Any]:
    def say(speaker: Speaker) -> Any:
        said = {"caller": speaker.caller, "key": "b", "step": 1, "slots": [pb.Slot(slot="weights", size_bytes=1)], **changed}
        return speaker.say("Begin", pb.BeginRequest(**said))

    return say


def _hello(**changed: Any) -> Callable[[Speaker], Any]:
    return lambda speaker: speaker.say("Hello", pb.HelloRequest(**{"caller": speaker.caller, "role": "trainer", **changed}))


def _arrived(data: bytes, slot: str = "weights", **changed: Any) -> Callable[[Speaker], Any]:
    def say(speaker: Speaker) -> Any:
        shard = wire.pack_shard(slot, Chunks.of(data, CHUNK))
        for name, value in changed.items():
            setattr(shard, name, value)
        return speaker.say("Arrived", pb.ArrivedRequest(caller=speaker.caller, key="open", shard=shard))

    return say


def _upload(**changed: Any) -> Callable[[Speaker], Any]:
    def say(speaker: Speaker) -> Any:
        said = {"caller": speaker.caller, "place": speaker.place, "blob": "weights.safetensors", "data": b"x", **changed}
        return speaker.say("Upload", iter([pb.Piece(**said)]))

    return say


def _fetch(**changed: Any) -> Callable[[Speaker], Any]:
    return lambda speaker: speaker.fetch(**changed)


def _download(**changed: Any) -> Callable[[Speaker], Any]:
    return lambda speaker: speaker.download(speaker.status().live, **changed)


NOBODY = pb.Caller(component="nobody", incarnation="1")
AHEAD, NEVER = pb.Commit(term=9, number=99), pb.Commit(term=0, number=99)

ONE_SLOT = pb.BeginRequest(slots=[pb.Slot(slot="s", size_bytes=1)]).SerializeToString()
MILLION = pb.BeginRequest.FromString(ONE_SLOT * 1_000_000).slots

BAD: list[tuple[str, str, Callable[[Speaker], Any]]] = [
    ("bad-message", "a component with a newline", _hello(caller=pb.Caller(component="a\nb", incarnation="1"))),
    ("bad-message", "no component", _hello(caller=pb.Caller())),
    ("bad-message", "a role that is none", _hello(role="owner")),
    ("bad-message", "an epoch below zero", _hello(epoch=-1)),
    ("no-protocol", "only a protocol of later", _hello(versions=["v2", "v3"])),
    ("other-run", "another run", _hello(run_id="some-other")),
    ("superseded", "an earlier start", _hello(caller=pb.Caller(component="trainer", incarnation="0"), epoch=0)),
    ("not-joined", "nobody", _begin(caller=NOBODY)),
    ("bad-message", "a step below zero", _begin(step=-1)),
    ("bad-message", "a time below zero", _begin(commit_timestamp=-5)),
    ("bad-message", "no key", _begin(key="")),
    ("bad-message", "a key too long", _begin(key="k" * 129)),
    ("bad-message", "a part of all the bytes there are", _begin(slots=[pb.Slot(slot="weights", size_bytes=2**64 - 1)])),
    ("bad-message", "a part that climbs", _begin(slots=[pb.Slot(slot="../../etc/passwd", size_bytes=1)])),
    ("bad-message", "a part with a slash", _begin(slots=[pb.Slot(slot="a/b", size_bytes=1)])),
    ("bad-message", "a million parts", _begin(slots=MILLION)),
    ("bad-shards", "no parts", _begin(slots=[])),
    ("bad-shards", "a part twice", _begin(slots=[pb.Slot(slot="weights", size_bytes=1)] * 2)),
    ("unknown-version", "a parent that never was", _begin(parent=NEVER)),
    ("key-reused", "a key with another step", _begin(key="open", step=2)),
    ("damaged-shard", "bytes that were not brought", _arrived(DATA)),
    ("not-announced", "a part that was not announced", _arrived(DATA, slot="more")),
    ("not-announced", "a part of another size", _arrived(DATA[:-1])),
    ("bad-message", "digests that do not add up", _arrived(DATA, digest="0" * 32)),
    ("bad-message", "chunks of no bytes", _arrived(DATA, chunk_bytes=0)),
    ("unknown-commit", "bytes for a place of nobody", _upload(place="000000000001-0000000000000000")),
    ("unknown-commit", "bytes for a place that climbs", _upload(place="../../tmp")),
    ("not-announced", "bytes for a part that was not announced", _upload(blob="more.safetensors")),
    ("not-announced", "bytes for a name that is no part's", _upload(blob="index.json")),
    ("not-announced", "bytes for a name that climbs", _upload(blob="../weights.safetensors")),
    ("not-announced", "bytes beyond the end", _upload(offset=len(DATA))),
    ("not-announced", "bytes far beyond the end", _upload(offset=2**64 - 1)),
    ("bad-message", "a piece too large", _upload(data=bytes((1 << 20) + 1))),
    ("not-joined", "bytes of nobody", _upload(caller=NOBODY)),
    ("no-version", "exactly nothing", _fetch(want="exact")),
    ("bad-message", "the best", _fetch(want="best")),
    ("unknown-version", "exactly what never was", _fetch(want="exact", at=NEVER)),
    ("not-yet", "what may come", _fetch(want="at least", at=AHEAD)),
    ("no-such-blob", "a blob that is not there", _download(blob="more.safetensors")),
    ("no-such-blob", "the record", _download(blob="index.json")),
    ("no-such-blob", "a place that climbs", _download(place="../..")),
    ("no-such-blob", "beyond the end", _download(offset=1, size_bytes=len(DATA))),
    ("no-such-blob", "far beyond the end", _download(offset=2**64 - 1, size_bytes=2**64 - 1)),
    ("unknown-version", "a generation of what never was", lambda s: s.say("Link", pb.LinkRequest(caller=s.caller, at=NEVER))),
    ("bad-message", "a generation of nothing", lambda s: s.say("Link", pb.LinkRequest(caller=s.caller))),
    ("bad-message", "to let go of nothing", lambda s: s.say("Release", pb.ReleaseRequest(caller=s.caller))),
    ("unknown-version", "to go back to what never was", lambda s: s.say("RollBack", pb.RollBackRequest(number=99))),
    ("not-joined", "a heartbeat of nobody", lambda s: s.say("Heartbeat", pb.HeartbeatRequest(caller=NOBODY))),
    ("not-joined", "a hold of nobody", lambda s: s.say("Hold", pb.HoldRequest(caller=NOBODY))),
    ("unknown-commit", "to wait for what nobody brings", lambda s: s.finish("never")),
]


def test_what_cannot_be_is_refused_in_plain_words_and_changes_nothing(served: Hall) -> None:
    trainer = served.trainer()
    trainer.commit("k", 1, {"weights": DATA})
    trainer.begin("open", 3, {"weights": DATA})
    status = trainer.status()
    for kind, what, say in BAD:
        assert (what, refused(lambda say=say: say(trainer))) == (what, kind)  # type: ignore[misc]
    after = trainer.status()
    assert (after.live, after.stagings, after.memory_bytes) == (status.live, status.stagings, status.memory_bytes)
    assert [each.caller.component for each in after.components] == ["trainer"]
    trainer.upload("weights", DATA)
    trainer.arrived("open", "weights", DATA)
    assert trainer.finish("open").weights.at.number == 2


def test_a_sampler_brings_nothing(served: Hall) -> None:
    sampler = served.sampler()
    assert refused(lambda: sampler.begin("k", 1, {"weights": DATA})) == "no-trainer"


def test_a_part_in_two_versions_is_somebody_elses(served: Hall) -> None:
    trainer = served.trainer()
    trainer.begin("k", 7, {"weights": DATA, "optimizer": DATA})
    trainer.upload("weights", DATA)
    trainer.arrived("k", "weights", DATA)
    assert refused(lambda: trainer.arrived("k", "weights", bytes(len(DATA)))) == "shard-differs"


def test_who_is_refused_does_not_change_where_its_component_is_said_to_run(served: Hall) -> None:
    first = served.trainer("1", 1, machine="a")
    second = served.trainer("2", 2, machine="b", pid=7)
    assert refused(lambda: first.hello(machine="a")) == "superseded"
    assert [(each.machine, each.pid) for each in second.status().components] == [("b", 7)]


def test_a_message_that_is_too_large_is_refused_unread_and_the_next_is_answered(served: Hall) -> None:
    trainer = served.trainer()
    with pytest.raises(grpc.RpcError) as caught:
        trainer.say("Abort", pb.AbortRequest(caller=trainer.caller, key="k", reason="x" * (17 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert trainer.status().run_id


@pytest.mark.parametrize("name", ["Hello", "Upload", "Download", "Watch", "Status"])
@pytest.mark.parametrize("token", [None, "", "wrong-token-of-the-same-length--", "é"])
def test_without_the_token_nothing_is_answered(served: Hall, name: str, token: str | None) -> None:
    speaker = served.speaker("trainer", token=token if token != "é" else None)
    if token == "é":
        speaker.metadata = [("authorization", "Bearer x"), ("authorization", f"Bearer {served.server.token}")]
    request: Any = getattr(pb, f"{name}Request", pb.Piece)()
    call = lambda: speaker.say(name, iter([request]) if name == "Upload" else request)  # noqa: E731
    assert refused((lambda: next(call())) if name in ("Download", "Watch") else call) == "bad-token"


def test_who_went_away_while_waiting_holds_nothing_and_waits_for_nothing(served: Hall) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    waiting = sampler.stub.Fetch.future(pb.FetchRequest(caller=sampler.caller, wait_ms=60_000), metadata=sampler.metadata)
    news = sampler.say("Watch", pb.WatchRequest(caller=sampler.caller))
    next(news)
    until(lambda: trainer.status().counts["waiting"] == trainer.status().counts["watchers"] == 1)
    waiting.cancel()
    news.cancel()
    until(lambda: trainer.status().counts["waiting"] == trainer.status().counts["watchers"] == 0)
    trainer.commit("k", 1, {"weights": DATA})
    assert trainer.status().versions[0].readers == 0
