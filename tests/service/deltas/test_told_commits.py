"""Tell a service its next version in so many words, and tell it nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from milepost.service import wire
from milepost.service.delta.settings import How
from milepost.service.deltas.telling import tell
from milepost.service.index import Chunks
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.serving import Server
from tests.service.deltas.versions import adam_like
from tests.service.server.speaking import Speaker, refusal

Spoken = tuple[Speaker, list[bytes], Path]


@pytest.fixture
def spoken(tmp_path: Path) -> Iterator[Spoken]:
    """Yield a trainer whose first version is there and whose second is begun, both versions, and the memory tier."""
    (tmp_path / "memory").mkdir()
    parts = adam_like(1, words=1 << 12)
    with (
        Server(tmp_path / "run", run_id="run", memory_base=str(tmp_path / "memory")) as server,
        Speaker(server.address, server.token, "trainer") as trainer,
    ):
        trainer.hello()
        trainer.commit("first", 1, {"weights": parts[0]})
        bring = trainer.begin("second", 2, {"weights": parts[1]})
        assert bring.service_keeps_base == 1
        yield trainer, parts, tmp_path / "memory"


def upload(trainer: Speaker, blob: str, data: bytes) -> None:
    trainer.say("Upload", iter([pb.Piece(caller=trainer.caller, place=trainer.place, blob=blob, offset=0, data=data)]))


def arrived(trainer: Speaker, part: bytes, told_bytes: int, number: int = 1, term: int = 1) -> None:
    trainer.say(
        "Arrived",
        pb.ArrivedRequest(
            caller=trainer.caller,
            key="second",
            shard=wire.pack_shard("weights", Chunks.of(part)),
            base=pb.Commit(term=term, number=number),
            told=pb.Shard(slot=f"weights.from-{number}", size_bytes=told_bytes),
        ),
    )


def refused(trainer: Speaker, part: bytes, told_bytes: int, number: int = 1, term: int = 1) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        arrived(trainer, part, told_bytes, number, term)
    return refusal(caught.value).kind


def is_brought_whole(trainer: Speaker, part: bytes, memory: Path) -> bool:
    trainer.upload("weights", part, piece=1 << 16)
    trainer.arrived("second", "weights", part)
    weights = trainer.finish("second").weights
    return trainer.download(weights) == part and not list(memory.rglob("*.from-*"))


def test_a_part_that_is_told_is_the_part_and_what_told_it_goes(spoken: Spoken) -> None:
    trainer, (old, new), memory = spoken
    told = b"".join(tell(old, new, How()) or [])
    upload(trainer, "weights.from-1", told)
    arrived(trainer, new, len(told))
    arrived(trainer, new, len(told))
    weights = trainer.finish("second").weights
    assert trainer.download(weights) == new
    assert not list(memory.rglob("*.from-*"))


def test_nonsense_is_refused_and_the_part_can_be_brought_whole(spoken: Spoken) -> None:
    trainer, (old, new), memory = spoken
    told = b"".join(tell(old, new, How()) or [])
    assert refused(trainer, new, len(told)) == "no-such-blob"
    upload(trainer, "weights.from-1", b"nonsense")
    assert refused(trainer, new, 8) == "damaged-delta"
    upload(trainer, "weights.from-1", told)
    assert refused(trainer, old[:-1] + b"\0", len(told)) == "damaged-delta"
    other = b"".join(tell(new, old, How()) or [])
    upload(trainer, "weights.from-1", other)
    assert refused(trainer, new, len(other)) == "wrong-base"
    assert not list(memory.rglob("*.from-*"))
    assert is_brought_whole(trainer, new, memory)


def test_against_another_version_than_the_one_that_is_kept_nothing_is_told(spoken: Spoken) -> None:
    trainer, (_, new), memory = spoken
    for name in ("weights.from-2", "weights.from-", "weights.from-01", "optimizer.from-1", "weights.from-1.from-1"):
        with pytest.raises(grpc.RpcError) as caught:
            upload(trainer, name, b"x")
        assert refusal(caught.value).kind == "not-announced"
    assert refused(trainer, new, 10, number=7) == "no-such-base"
    assert refused(trainer, new, 10, term=9) == "no-such-base"
    assert is_brought_whole(trainer, new, memory)


def test_a_delta_grows_no_longer_than_its_part(spoken: Spoken) -> None:
    trainer, (_, new), memory = spoken
    with pytest.raises(grpc.RpcError) as caught:
        upload(trainer, "weights.from-1", bytes(len(new) + 1))
    assert refusal(caught.value).kind == "not-announced"
    upload(trainer, "weights.from-1", bytes(len(new)))
    assert is_brought_whole(trainer, new, memory)


def test_a_part_that_was_half_brought_whole_may_still_be_told_and_the_other_way_round(spoken: Spoken) -> None:
    trainer, (old, new), _ = spoken
    trainer.upload("weights", new[: len(new) // 2], piece=1 << 16)
    upload(trainer, "weights.from-1", b"nonsense")
    assert refused(trainer, new, 8) == "damaged-delta"
    trainer.upload("weights", new[: len(new) // 2], piece=1 << 16)
    told = b"".join(tell(old, new, How()) or [])
    upload(trainer, "weights.from-1", told)
    arrived(trainer, new, len(told))
    assert trainer.download(trainer.finish("second").weights) == new


def test_an_offer_of_what_is_not_there_is_none(spoken: Spoken) -> None:
    trainer, _, _ = spoken
    for base, at in ((1, 1), (1, 9), (9, 1), (0, 0), (1, 2)):
        reply = trainer.say(
            "Offer",
            pb.OfferRequest(
                caller=trainer.caller,
                base=pb.Commit(term=1, number=base) if base else None,
                at=pb.Commit(term=1, number=at) if at else None,
                slots=["weights", "weights", "../etc", ""],
                link_bytes_s=float("nan"),
            ),
        )
        assert not reply.told
