"""A record that its holder renews keeps a second writer out, by each watcher's own monotonic clock and nobody's wall clock. A13

Time here passes for all peers alike, and only when somebody waits; what their wall clocks show is as wrong as a test says.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from milepost.clock import Clock, FakeClock
from milepost.errors import ConflictError, CorruptError, StoreError, UsageError
from milepost.lifecycle.verify import verify
from milepost.publish import layout
from milepost.publish.term import Identity, claim
from milepost.store.base import Store
from milepost.store.lease import LEASE, Lease, LeaseGuard, LeaseRecord, decode_lease
from milepost.store.lock import Holder
from milepost.store.memory import MemoryStore
from milepost.store.process import boot_id, host_name, process_start_time
from milepost.testing.faults import FaultStore, run_in_child

TTL_S = 30.0
BEAT_S = TTL_S / 3
POLL_S = 1.0
HOUR_S = 3600.0


@dataclass
class Peers:
    """Be all who know one root, and the time that passes for them."""

    root: Store = field(default_factory=MemoryStore)
    peers: list[Peer] = field(default_factory=list)
    now_s: float = 0.0

    def peer(self, *, wall_s: float = 0.0, ttl_s: float = TTL_S) -> Peer:
        number = len(self.peers) + 1
        # No two monotonic clocks ever started at the same time.
        clock = FakeClock(
            now_ns=number * 10**15, epoch_ns=1_700_000_000_000_000_000 + round(wall_s * 1e9), prefix=f"{number:04x}"
        )
        clock.epoch_ns -= clock.now_ns
        made = Peer(self, number, clock, FaultStore(self.root), ttl_s)
        self.peers.append(made)
        return made

    def wait(self, seconds: float) -> None:
        """Let time pass, and those who are awake renew their leases when it is time to."""
        until_s = self.now_s + seconds
        while True:
            due = [peer for peer in self.peers if peer.is_awake and peer.guard and peer.next_beat_s <= until_s]
            peer = min(due, key=lambda each: each.next_beat_s, default=None)
            self._advance((peer.next_beat_s if peer else until_s) - self.now_s)
            if peer is None or peer.guard is None:
                return
            peer.next_beat_s += peer.ttl_s / 3
            peer.guard.beat()

    def _advance(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)
        for peer in self.peers:
            peer.clock.advance(seconds=max(0.0, seconds))


@dataclass
class Peer:
    """Be one process on a machine of its own."""

    peers: Peers
    number: int
    clock: FakeClock
    store: FaultStore
    ttl_s: float
    guard: LeaseGuard | None = None
    is_awake: bool = True
    next_beat_s: float = 0.0

    @property
    def host(self) -> str:
        return f"machine{self.number}"

    def who(self, clock: Clock) -> Holder:
        return Holder(1000 + self.number, self.host, f"boot{self.number}", 1, clock.wall_ns(), "", "train.py")

    def enter(self, wait_s: float = 0.0, *, take_over: bool = False) -> LeaseGuard:
        lease = Lease(self.ttl_s, self.who, renewed=False)
        guard = LeaseGuard(self.store, lease, self.clock, self.peers.wait, wait_s=wait_s, take_over=take_over)
        guard.__enter__()
        self.guard, self.next_beat_s = guard, self.peers.now_s + self.ttl_s / 3
        return guard

    def leave(self) -> None:
        assert self.guard is not None
        guard, self.guard = self.guard, None
        guard.__exit__(None, None, None)

    def refused(self, wait_s: float = 0.0) -> ConflictError:
        with pytest.raises(ConflictError) as caught:
            self.enter(wait_s)
        assert caught.value.kind == "held"
        return caught.value

    def record(self) -> LeaseRecord:
        found = decode_lease(self.peers.root.read(LEASE))
        assert found is not None
        return found

    @property
    def holds(self) -> bool:
        found = self.record()
        return found.holder.host == self.host and not found.released


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
def a(peers: Peers) -> Peer:
    return peers.peer()


@pytest.fixture
def b(peers: Peers) -> Peer:
    return peers.peer()


# --- free, held, expired --------------------------------------------------------------------------------------------------


def test_a_free_lease_is_taken_at_once_and_given_back_so_that_the_next_waits_for_nothing(peers: Peers, a: Peer, b: Peer) -> None:
    for peer in (a, b, a):
        guard = peer.enter()
        assert not guard.forced
        assert not guard.abandoned
        assert peer.holds
        peer.leave()
        assert not peer.holds
    assert peers.now_s == 0


def test_who_is_not_willing_to_wait_is_refused_with_the_first_beat_and_told_who_lives(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    peers.wait(100.0)
    began_s = peers.now_s
    error = b.refused()
    assert peers.now_s - began_s <= BEAT_S + POLL_S
    assert (error.facts["pid"], error.facts["host"], error.facts["age_s"]) == (1001, "machine1", int(peers.now_s))
    assert error.exit_code == 11
    for word in ("machine1", "lease_wait", "take_over=True", "--take-over"):
        assert word in error.hint
    assert a.holds


def test_the_lease_of_a_dead_process_is_free_after_one_time_to_live_and_not_before(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    a.is_awake = False
    peers.wait(7.0)
    began_s = peers.now_s
    guard = b.enter()
    assert not guard.forced
    assert guard.abandoned
    # However long it has been dead: b cannot know, and by its own clock it has watched for no longer than this.
    assert TTL_S <= peers.now_s - began_s <= TTL_S + POLL_S
    assert b.holds


@pytest.mark.parametrize("wall_s", [-5 * HOUR_S, 0.0, 5 * HOUR_S, 10**6 * HOUR_S])
def test_wall_clocks_that_are_hours_apart_decide_nothing(peers: Peers, a: Peer, wall_s: float) -> None:
    b = peers.peer(wall_s=wall_s)
    a.enter()
    peers.wait(100.0)
    error = b.refused()
    assert isinstance(error.facts["age_s"], int)
    assert error.facts["age_s"] >= 0
    a.is_awake = False
    began_s = peers.now_s
    b.enter()
    assert TTL_S <= peers.now_s - began_s <= TTL_S + POLL_S


def test_wall_clocks_that_go_backwards_decide_nothing(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    for _ in range(5):
        a.clock.epoch_ns -= round(HOUR_S * 1e9)
        b.clock.epoch_ns += round(HOUR_S * 1e9)
        b.refused()
    assert a.holds


def test_a_holder_that_promised_to_renew_less_often_is_watched_for_as_long_as_it_said(peers: Peers, b: Peer) -> None:
    slow = peers.peer(ttl_s=10 * TTL_S)
    slow.enter()
    b.refused()
    slow.is_awake = False
    began_s = peers.now_s
    b.enter()
    assert peers.now_s - began_s >= 10 * TTL_S


def test_a_record_that_is_too_large_to_be_one_is_refused_and_not_watched_for_ever(peers: Peers, a: Peer) -> None:
    peers.root.replace(LEASE, bytes(1 << 20))
    with pytest.raises(CorruptError) as caught:
        a.enter()
    assert caught.value.facts["name"] == LEASE


def test_a_record_that_promises_to_be_silent_for_years_is_watched_for_ten_minutes(peers: Peers, a: Peer, b: Peer) -> None:
    b.enter()
    b.is_awake = False
    peers.root.replace(LEASE, replace(b.record(), ttl_ms=10**15).encode())
    began_s = peers.now_s
    a.enter()
    assert 600.0 <= peers.now_s - began_s <= 600.0 + POLL_S


def test_a_record_that_is_damaged_is_watched_like_any_other(peers: Peers, a: Peer) -> None:
    peers.root.create(LEASE, b"not a lease")
    a.enter()
    assert TTL_S <= peers.now_s <= TTL_S + POLL_S
    assert a.holds


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan, math.inf, 601.0])
def test_a_time_to_live_is_longer_than_none_and_at_most_ten_minutes(ttl_s: float) -> None:
    with pytest.raises(UsageError):
        Lease(ttl_s=ttl_s)


# --- waiting --------------------------------------------------------------------------------------------------------------


def test_a_waiting_writer_goes_on_when_the_holder_leaves(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    with ThreadPoolExecutor(1) as pool:
        gate = b.store.pause("read", LEASE, nth=5)
        waiting = pool.submit(b.enter, 10 * TTL_S)
        gate.wait_until_reached()
        a.leave()
        left_s = peers.now_s
        gate.release()
        assert not waiting.result().forced
    assert peers.now_s == left_s
    assert b.holds


def test_waiting_for_one_that_lives_ends_when_its_time_is_over(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    b.refused(wait_s=100.0)
    assert peers.now_s == 100.0


def test_a_holder_that_dies_while_somebody_waits_is_followed(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    peers.wait(BEAT_S)
    a.is_awake = False
    b.enter(wait_s=1000.0)
    assert peers.now_s <= BEAT_S + TTL_S + POLL_S


# --- two who want it ------------------------------------------------------------------------------------------------------


def test_of_two_who_see_a_lease_expire_one_has_it_and_the_other_is_told_who(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    a.is_awake = False
    c = peers.peer()
    with ThreadPoolExecutor(1) as pool:
        gate = c.store.pause("replace_if", LEASE)
        racing = pool.submit(c.refused)
        gate.wait_until_reached()
        b.enter()
        gate.release()
        assert racing.result().facts["host"] == b.host
    assert b.holds


def test_a_thread_of_the_same_process_does_not_take_a_lease_for_left_behind_that_is_just_being_taken() -> None:
    root = MemoryStore()
    store, lease = FaultStore(root), Lease(renewed=False)

    def guard(of: Store, prefix: str) -> LeaseGuard:
        return LeaseGuard(of, lease, FakeClock(prefix=prefix), lambda _: None, wait_s=0.0, take_over=False)

    first = guard(store, "000a")
    with ThreadPoolExecutor(1) as pool:
        gate = store.pause("replace_if", LEASE, after=True)
        entering = pool.submit(first.__enter__)
        gate.wait_until_reached()
        try:
            with pytest.raises(ConflictError):
                guard(root, "000b").__enter__()
        finally:
            gate.release()
        entering.result()
    assert first.beat()
    first.__exit__(None, None, None)


def test_a_holder_that_wakes_in_the_last_moment_keeps_its_lease(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    a.is_awake = False
    with ThreadPoolExecutor(1) as pool:
        gate = b.store.pause("replace_if", LEASE)
        racing = pool.submit(b.refused)
        gate.wait_until_reached()
        assert a.guard is not None
        assert a.guard.beat()
        gate.release()
        racing.result()
    assert a.holds


def test_an_observer_that_was_paused_between_two_looks_believes_the_second_look(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    with ThreadPoolExecutor(1) as pool:
        # It has asked for the record, and gets the answer of then an hour later.
        gate = b.store.pause("read", LEASE, nth=3, after=True)
        looking = pool.submit(b.refused)
        gate.wait_until_reached()
        peers.wait(HOUR_S)
        gate.release()
        looking.result()
    assert a.holds


# --- taking over ----------------------------------------------------------------------------------------------------------


def test_taking_over_waits_no_longer_than_it_was_told_and_says_that_it_was_forced(peers: Peers, a: Peer, b: Peer) -> None:
    a.enter()
    assert b.enter(take_over=True).forced
    assert (peers.now_s, b.holds) == (0.0, True)
    b.leave()
    peers.wait(5.0)
    assert b.enter(wait_s=4.0, take_over=True).forced
    assert peers.now_s == 9.0


def test_the_one_that_was_taken_over_learns_it_once_and_leaves_the_lease_alone(
    peers: Peers, a: Peer, b: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    guard = a.enter()
    b.enter(take_over=True)
    with caplog.at_level(logging.WARNING, "milepost"):
        assert [guard.beat() for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert "taken by another process" in caplog.text
    a.leave()
    assert b.holds


def test_a_takeover_that_ends_puts_back_what_it_found_and_its_holder_is_followed_once_silent(
    peers: Peers, a: Peer, b: Peer
) -> None:
    a.enter()
    found = peers.root.read(LEASE)
    b.enter(take_over=True)
    peers.wait(2 * BEAT_S)
    b.leave()
    assert peers.root.read(LEASE) == found
    c, began_s = peers.peer(), peers.now_s
    c.enter()
    assert peers.now_s - began_s >= TTL_S


# --- answers that get lost, requests that come late -----------------------------------------------------------------------


def test_a_lost_answer_to_any_request_leaves_the_lease_where_it_landed(peers: Peers, a: Peer, b: Peer) -> None:
    a.store.lose_answer("replace_if", LEASE, nth=1)
    guard = a.enter()
    a.store.lose_answer("replace_if", LEASE)
    assert guard.beat()
    assert guard.beat()
    assert a.record().beat == 2
    a.store.lose_answer("replace_if", LEASE)
    a.leave()
    b.enter()
    assert peers.now_s == 0


def test_a_beat_that_timed_out_is_sent_again_and_does_nothing_when_it_comes_late(a: Peer) -> None:
    guard = a.enter()
    late = a.store.delay("replace_if", LEASE)
    assert guard.beat()
    assert a.record().beat == 0
    assert guard.beat()
    assert guard.beat()
    assert a.store.deliver(late) is False
    assert a.record().beat == 2


def test_a_beat_that_lands_after_it_was_given_up_is_still_a_beat_of_ours(a: Peer, caplog: pytest.LogCaptureFixture) -> None:
    guard = a.enter()
    late = a.store.delay("replace_if", LEASE)
    assert guard.beat()
    assert a.store.deliver(late) is True
    assert guard.beat()
    assert guard.beat()
    assert a.record().beat == 3
    a.leave()
    assert a.record().released
    assert caplog.records == []


def test_a_claim_that_timed_out_and_lands_late_stands_in_nobodys_way_for_long(peers: Peers, a: Peer, b: Peer) -> None:
    late = a.store.delay("replace_if", LEASE)
    with pytest.raises(StoreError):
        a.enter()
    assert a.store.deliver(late) is True
    b.enter()
    assert TTL_S <= peers.now_s <= TTL_S + POLL_S


def test_a_claim_of_this_process_that_landed_late_does_not_stand_in_its_own_way() -> None:
    store, numbers = FaultStore(MemoryStore()), count(1)
    late = store.delay("replace_if", LEASE)

    def guard() -> LeaseGuard:
        clock = FakeClock(prefix=f"{next(numbers):04x}")  # no two claims have one incarnation
        return LeaseGuard(store, Lease(renewed=False), clock, _never, wait_s=0.0, take_over=False)

    with pytest.raises(StoreError), guard():
        pytest.fail("it was not told that it has the lease")
    store.deliver(late)
    with guard(), pytest.raises(ConflictError, match="this process writes to this run root already"), guard():
        pytest.fail("two guards at once")


def _never(_seconds: float) -> None:
    pytest.fail("there is nothing to wait for")


def test_renewals_that_fail_for_too_long_are_told_once_and_go_on(
    peers: Peers, a: Peer, b: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    a.enter()
    a.store.fail("replace_if", LEASE, times=9)
    with caplog.at_level(logging.WARNING, "milepost"):
        peers.wait(3 * TTL_S + 1)
        assert len(caplog.records) == 1
        assert "could not be renewed" in caplog.text
        b.refused()  # the network is back: nobody has taken it meanwhile
    assert a.holds
    a.store.fail("replace_if", LEASE, times=None)
    b.enter()
    with caplog.at_level(logging.WARNING, "milepost"):
        a.leave()
    assert b.holds
    assert "not given back" in caplog.text


def test_a_lease_that_somebody_deleted_is_lost(a: Peer, b: Peer) -> None:
    guard = a.enter()
    b.store.delete(LEASE)
    assert not guard.beat()
    b.enter()
    a.leave()
    assert b.holds


# --- the record, the thread, and forked children --------------------------------------------------------------------------


def test_every_flipped_bit_of_the_record_is_found(a: Peer, peers: Peers) -> None:
    a.enter()
    data = peers.root.read(LEASE)
    assert decode_lease(data) is not None
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        assert decode_lease(bytes(flipped)) is None


def test_verify_checks_the_lease_and_layout_knows_its_name(a: Peer, peers: Peers) -> None:
    claim(peers.root, a.clock, Identity("host", "boot", 1))
    for act in (a.enter, a.leave):
        act()
        assert verify(peers.root).problems == ()
    peers.root.replace(LEASE, peers.root.read(LEASE).replace(b"1001", b"1002"))
    assert [problem.name for problem in verify(peers.root).problems] == [LEASE] == [layout.LEASE]


def test_a_member_that_a_later_version_adds_is_skipped(a: Peer, peers: Peers) -> None:
    a.enter()
    record = a.record()
    more = replace(record, beat=7).encode()
    front = more.partition(b',"digest"')[0] + b',"more":1'
    sealed = front + b',"digest":"sha256:' + hashlib.sha256(front + b"}").hexdigest().encode() + b'"}\n'
    assert decode_lease(sealed) == replace(record, beat=7)


def test_a_thread_renews_the_lease_while_it_is_held_and_no_longer() -> None:
    store = FaultStore(MemoryStore())
    gate = store.pause("replace_if", LEASE, nth=3)
    guard = LeaseGuard(store, Lease(ttl_s=0.003), FakeClock(), _never, wait_s=0.0, take_over=False)
    with guard:
        gate.wait_until_reached()
        (thread,) = (each for each in threading.enumerate() if each.name == "milepost-lease")
        assert thread.daemon
        gate.release()
    assert not thread.is_alive()
    found = decode_lease(store.read(LEASE))
    assert found is not None
    assert found.released


def test_leaving_does_not_wait_for_a_renewal_that_hangs_and_what_lands_late_does_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultStore(MemoryStore())
    gate = store.pause("replace_if", LEASE, nth=2)
    guard = LeaseGuard(store, Lease(ttl_s=0.003), FakeClock(), _never, wait_s=0.0, take_over=False)
    with caplog.at_level(logging.WARNING, "milepost"), guard:
        gate.wait_until_reached()
        (thread,) = (each for each in threading.enumerate() if each.name == "milepost-lease")
    assert "not given back" in caplog.text
    store.replace(LEASE, b"the next one's")
    gate.release()
    thread.join()
    assert store.read(LEASE) == b"the next one's"


def test_a_forked_child_neither_renews_nor_gives_back_the_lease_of_its_parent(peers: Peers, a: Peer) -> None:
    guard = a.enter()
    held = peers.root.read(LEASE)

    def child() -> None:
        assert not [each for each in threading.enumerate() if each.name == "milepost-lease"]
        guard.__exit__(None, None, None)
        assert peers.root.read(LEASE) == held

    assert run_in_child(child) == 0


def test_a_process_that_is_seen_on_this_machine_is_believed_to_hold_what_it_wrote(b: Peer, peers: Peers) -> None:
    parent = os.getppid()
    holder = Holder(parent, host_name(), boot_id(), process_start_time(parent), b.clock.wall_ns(), "", "train.py")
    peers.root.create(LEASE, LeaseRecord(holder, "x", 0, 30_000).encode())
    assert f"kill {parent}" in b.refused().hint
    assert peers.now_s == 0
    b.enter(wait_s=2 * TTL_S)  # it is stopped, or hangs: it was given its time
    assert TTL_S <= peers.now_s <= TTL_S + POLL_S


def test_a_leased_store_guards_by_its_lease_whoever_opens_it(tmp_path: Path) -> None:
    peers = Peers(MemoryStore(str(tmp_path)))
    a = peers.peer()
    store = MemoryStore(str(tmp_path), lease=Lease(TTL_S, renewed=False), clock=FakeClock(), wait=peers.wait)
    assert store.capabilities.guard == "lease"
    with store.guard(wait_s=0.0, take_over=False):
        assert a.refused().facts["pid"] == os.getpid()
    a.enter()
    assert peers.now_s == 0
