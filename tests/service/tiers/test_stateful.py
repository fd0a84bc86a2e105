"""Bring, commit, spill, drop, damage, lose and begin anew in any order: what is found is what is whole and known. C4, C13, C14"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from milepost.clock import SystemClock
from milepost.service.adopting import Opened, open_service
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Began, Commit, Committed, Dropped, Stored
from milepost.service.index import blob_of
from milepost.service.tiers.spilling import spill
from milepost.service.transports.base import Blob
from milepost.store.local import LocalStore
from milepost.testing.faults import FaultStore, Killed
from tests.at_length import examples
from tests.service.tiers.versions import bring, contents, index_of, weights_of

clock = SystemClock()


class Lives(RuleBasedStateMachine):
    """Be a service that is begun again and again; the model is which versions are whole where."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(mkdtemp(prefix="milepost-lives-"))
        (self.home / "shm").mkdir()
        self.in_memory: set[int] = set()
        self.on_disk: set[int] = set()
        self.known: dict[int, Commit] = {}
        self.number = 0
        self.open: Opened = self.opened()

    def teardown(self) -> None:
        if hasattr(self, "open"):
            self.open.close()
            shutil.rmtree(self.home)

    def opened(self) -> Opened:
        return open_service(str(self.home / "run"), clock, memory_base=str(self.home / "shm"))

    @rule(whole=st.booleans(), known=st.booleans(), to_disk=st.booleans())
    def commit(self, whole: bool, known: bool, to_disk: bool) -> None:
        """Bring a version, and be killed anywhere before it is written down; or not."""
        self.number += 1
        index = bring(self.open.disk if to_disk else self.open.memory, self.number, whole=whole or known)
        if known:
            catalogue = Catalogue(self.open.entries)
            at = Commit(catalogue.term, catalogue.next_number)
            self.write(Committed(weights_of(index, at.number, catalogue.live, at.term)))
            self.known[self.number] = at
            (self.on_disk if to_disk else self.in_memory).add(self.number)

    def write(self, entry: Committed | Stored | Dropped) -> None:
        self.open.journal.append([entry])
        self.open.entries.append(entry)

    @precondition(lambda self: self.in_memory)
    @rule(data=st.data(), dies_at=st.none() | st.integers(0, 14), told=st.booleans())
    def spill(self, data: st.DataObject, dies_at: int | None, told: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.in_memory)))
        store = FaultStore(LocalStore(self.open.disk.store.url, clock))
        if dies_at is not None:
            store.kill_before(dies_at)
        disk = type(self.open.disk)(store)
        try:
            spill(index_of(number), self.open.memory, disk)
        except Killed:
            if self.open.disk.index(index_of(number).place) is None:
                self.on_disk.discard(number)  # one that is whole is not touched
            else:
                self.on_disk.add(number)
            self.again()
            return
        self.on_disk.add(number)
        if told:
            self.write(Stored(self.known[number]))

    @precondition(lambda self: self.in_memory | self.on_disk)
    @rule(data=st.data(), from_memory=st.booleans())
    def drop(self, data: st.DataObject, from_memory: bool) -> None:
        there = self.in_memory if from_memory else self.on_disk
        if not there:
            return
        number = data.draw(st.sampled_from(sorted(there)))
        at = self.known[number]
        if not from_memory and at == Catalogue(self.open.entries).durable:
            return
        if not from_memory:
            self.write(Dropped(at))
        (self.open.memory if from_memory else self.open.disk).erase(index_of(number).place)
        there.remove(number)

    @precondition(lambda self: self.in_memory)
    @rule(data=st.data())
    def rot(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.in_memory)))
        slot = data.draw(st.sampled_from([slot for slot, part in contents(number).items() if part]))
        at = data.draw(st.integers(0, len(contents(number)[slot]) - 1))
        wrong = bytes([contents(number)[slot][at] ^ 1])
        self.open.memory.write(Blob(index_of(number).place, blob_of(slot)), at, wrong)
        self.in_memory.remove(number)
        self.again()

    @rule()
    def lose_memory(self) -> None:
        shutil.rmtree(self.open.memory.directory)
        self.in_memory.clear()
        self.again()

    @rule()
    def again(self) -> None:
        """End and begin: exactly what is whole and known is found, and nothing else is left."""
        live = Catalogue(self.open.entries).live
        before = Catalogue(self.open.entries)
        self.open.close()
        self.open = self.opened()
        found = self.open.found
        assert found.memory == {self.known[number] for number in self.in_memory}
        assert found.disk == {self.known[number] for number in self.on_disk}
        assert self.open.memory.places() == sorted(index_of(number).place for number in self.in_memory)
        assert self.open.disk.places() == sorted(index_of(number).place for number in self.on_disk)
        began = self.open.entries[-1]
        assert isinstance(began, Began)
        there = found.memory | found.disk
        assert began.live == next((at for at in before.line(live) if at in there), None)


def test_whatever_happens_between_two_starts_the_next_one_finds_what_is_whole() -> None:
    run_state_machine_as_test(Lives, settings=settings(max_examples=examples(25, 300), stateful_step_count=15, deadline=None))
