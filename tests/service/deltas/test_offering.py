from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.encode.digest import Buffer
from milepost.errors import NotFoundError
from milepost.service.delta.settings import How
from milepost.service.deltas import offering
from milepost.service.deltas.offering import Offers, Wish
from milepost.service.deltas.telling import make
from milepost.service.index import Chunks, Index, blob_of
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob
from tests.service.deltas.versions import adam_like, tier_of

WAIT_S = 120


@contextmanager
def offering_from(memory: MemoryTier, *, most_bytes: int = 1 << 30, how: How | None = None) -> Iterator[Offers]:
    def part(blob: Blob) -> Buffer | None:
        return memory.map(blob)

    offers = Offers(memory, part, how=how or How(), most_bytes=most_bytes)
    offers.start()
    try:
        yield offers
    finally:
        offers.close()


def wish(indexes: list[Index], base: int, at: int, slot: str = "weights") -> Wish:
    return Wish(indexes[base].place, base, indexes[at].place, slot)


def said(future: Future[Chunks | None]) -> Chunks | None:
    return future.result(timeout=WAIT_S)


@pytest.fixture
def three(tmp_path: Path) -> tuple[MemoryTier, list[Index], list[bytes]]:
    parts = adam_like(1, 3, words=1 << 16)
    memory, indexes = tier_of(tmp_path / "memory", [{"weights": part} for part in parts])
    return memory, indexes, parts


class Gate:
    """Hold the encoder up until it is let through, and count how often it came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.came, self.may_go, self.times = threading.Event(), threading.Event(), 0
        tell = offering.tell

        def held(*args: Any) -> Any:
            self.times += 1
            self.came.set()
            assert self.may_go.wait(WAIT_S)
            return tell(*args)

        monkeypatch.setattr(offering, "tell", held)


def test_what_is_offered_lies_in_the_place_of_the_version_and_makes_it(
    three: tuple[MemoryTier, list[Index], list[bytes]],
) -> None:
    memory, indexes, parts = three
    with offering_from(memory) as offers:
        told = said(offers.ask(wish(indexes, 0, 2)))
    assert told is not None
    blob = memory.map(Blob(indexes[2].place, "weights.from-0"))
    assert Chunks.of(blob) == told
    assert len(blob) * 25 < len(parts[2])
    into = memoryview(bytearray(len(parts[2])))
    make(blob, parts[0], into, indexes[2].chunks["weights"])
    assert into == parts[2]


def test_many_who_ask_for_the_same_at_once_have_it_made_once(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, _ = three
    gate = Gate(monkeypatch)
    with offering_from(memory) as offers:
        asked = [offers.ask(wish(indexes, 0, 1)) for _ in range(8)]
        assert gate.came.wait(WAIT_S)
        asked[0].cancel()
        asked += [offers.ask(wish(indexes, 0, 1)) for _ in range(8)]
        gate.may_go.set()
        answers = {said(future) for future in asked}
        assert len(answers) == 1
        assert None not in answers
        assert said(offers.ask(wish(indexes, 0, 1))) in answers
    assert gate.times == 1


def test_a_base_that_is_gone_is_answered_with_the_whole(three: tuple[MemoryTier, list[Index], list[bytes]]) -> None:
    memory, indexes, _ = three
    memory.erase(indexes[0].place)
    with offering_from(memory) as offers:
        assert said(offers.ask(wish(indexes, 0, 2))) is None
        assert said(offers.ask(wish(indexes, 1, 2, "optimizer"))) is None
        assert offers.last_failure == ""
        assert said(offers.ask(wish(indexes, 1, 2))) is not None


def test_a_base_that_goes_while_it_is_told_against_stays_what_it_was(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, parts = three
    gate = Gate(monkeypatch)
    with offering_from(memory) as offers:
        asked = offers.ask(wish(indexes, 0, 1))
        assert gate.came.wait(WAIT_S)
        offers.forget(indexes[0].place)
        memory.erase(indexes[0].place)
        gate.may_go.set()
        assert said(asked) is not None
    into = memoryview(bytearray(len(parts[1])))
    make(memory.map(Blob(indexes[1].place, "weights.from-0")), parts[0], into, indexes[1].chunks["weights"])
    assert into == parts[1]


def test_nothing_comes_to_a_place_that_was_erased_while_it_was_told(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, _ = three
    gate = Gate(monkeypatch)
    with offering_from(memory) as offers:
        asked = offers.ask(wish(indexes, 0, 1))
        assert gate.came.wait(WAIT_S)
        offers.forget(indexes[1].place)
        memory.erase(indexes[1].place)
        gate.may_go.set()
        assert said(asked) is None
    assert indexes[1].place not in os.listdir(memory.directory)


def test_who_asks_is_never_held_up_by_what_is_being_told(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, _ = three
    gate = Gate(monkeypatch)
    with offering_from(memory) as offers:
        first = offers.ask(wish(indexes, 0, 1))
        assert gate.came.wait(WAIT_S)
        others = [offers.ask(wish(indexes, 0, 2, f"part{number}")) for number in range(offering.MOST_WAITING + 10)]
        assert sum(other.done() for other in others) == 10, "and not more wait than may"
        assert not first.done()
        gate.may_go.set()


def test_deltas_take_no_more_memory_than_they_may_and_the_least_asked_for_goes(
    three: tuple[MemoryTier, list[Index], list[bytes]],
) -> None:
    memory, indexes, _ = three
    with offering_from(memory) as offers:
        sizes = [told.size_bytes for base, at in ((0, 1), (0, 2), (1, 2)) if (told := said(offers.ask(wish(indexes, base, at))))]
    with offering_from(memory, most_bytes=sum(sizes) - 1) as offers:
        assert not any(".from-" in name for index in indexes for name in memory.names(index.place)), "nobody had counted it"
        for base, at in ((0, 1), (0, 2), (0, 1), (1, 2)):
            assert said(offers.ask(wish(indexes, base, at))) is not None
        left = {name for index in indexes for name in memory.names(index.place) if ".from-" in name}
        assert left == {"weights.from-0", "weights.from-1"}
        with pytest.raises(NotFoundError):
            memory.map(Blob(indexes[2].place, "weights.from-0"))
        assert said(offers.ask(wish(indexes, 0, 2))) is not None, "and is made again"
    with offering_from(memory, most_bytes=10) as offers:
        assert said(offers.ask(wish(indexes, 0, 1))) is None
        assert memory.names(indexes[1].place) == ["index.json", blob_of("weights")]


def test_a_reader_whose_link_is_fast_has_the_whole_and_a_slow_one_is_told(
    three: tuple[MemoryTier, list[Index], list[bytes]],
) -> None:
    memory, indexes, _ = three
    with offering_from(memory) as offers:
        assert said(offers.ask(wish(indexes, 0, 1), 10e9)) is None
        assert said(offers.ask(wish(indexes, 0, 1), 10e6)) is not None
        assert said(offers.ask(wish(indexes, 0, 1), 10e9)) is None
        for link in (0.0, -1.0, float("nan"), float("inf")):
            assert said(offers.ask(wish(indexes, 0, 1), link)) is not None, "a number that is none counts as not measured"


def test_a_fault_of_the_encoder_costs_nobody_more_than_the_whole(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, _ = three

    def broken(*args: object) -> None:
        raise MemoryError("none left")

    with offering_from(memory) as offers:
        with monkeypatch.context() as patch:
            patch.setattr(offering, "tell", broken)
            assert said(offers.ask(wish(indexes, 0, 1))) is None
            assert "none left" in offers.last_failure
        assert said(offers.ask(wish(indexes, 0, 2))) is not None
        assert offers.last_failure == ""


def test_after_the_end_nothing_is_told_and_nobody_waits(
    three: tuple[MemoryTier, list[Index], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, indexes, _ = three
    gate = Gate(monkeypatch)
    with offering_from(memory) as offers:
        asked = [offers.ask(wish(indexes, 0, 1)), offers.ask(wish(indexes, 0, 2))]
        assert gate.came.wait(WAIT_S)
        ending = threading.Thread(target=offers.close)
        ending.start()
        while offers._thread is not None:
            pass
        gate.may_go.set()
        ending.join(WAIT_S)
        assert said(asked[0]) is not None
        assert said(asked[1]) is None
        assert said(offers.ask(wish(indexes, 1, 2))) is None
