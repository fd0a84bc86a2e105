"""One sequence of events each, and what must come of it. C1, C2, C4, C13, C14, C16"""

from __future__ import annotations

import pytest

from milepost.errors import CorruptError, UsageError
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Abort, Goodbye, Heartbeat, Link, NotModified, Record, Recorded, Release, Spilled
from milepost.service.core.records import Began, Commit, Entry, Held, Joined, Resumed, Saved
from milepost.service.core.turns import Turn, Turns
from tests.service.core.world import Accepted, Bring, Caller, Done, Refused, Settings, Shard, Take, Welcome, World

T1, T2, S1 = Caller("trainer", "t1"), Caller("trainer", "t2"), Caller("sampler-0", "s1")


@pytest.fixture
def world() -> World:
    world = World(Settings(memory_bytes=100))
    assert world.join(T1, "trainer", 1) == Welcome(None, None)
    assert world.join(S1, "sampler", 1) == Welcome(None, None)
    return world


def refused(answer: object) -> str:
    assert isinstance(answer, Refused), answer
    return answer.kind


def taken(answer: object) -> Commit:
    assert isinstance(answer, Take), answer
    return answer.weights.at


def test_a_version_is_visible_when_its_last_part_is_here_and_that_is_written_down_not_before(world: World) -> None:
    assert world.begin(T1, "k", 5, {"a": 3, "b": 4}) == Bring(("a", "b"), "memory")
    assert world.finish(T1, "k") is None
    assert world.bring(T1, "k", Shard("b", 4, "B")) == Accepted()
    assert world.fetch(S1) == NotModified(None)
    world.bring(T1, "k", Shard("a", 3, "A"))
    assert world.fetch(S1) == NotModified(None)
    world.record()
    (done,) = (answer for answer in world.answers.values() if isinstance(answer, Done))
    assert [shard.slot for shard in done.weights.shards] == ["a", "b"]
    assert taken(world.fetch(S1)) == done.weights.at == Commit(1, 1)
    assert world.fetch(S1, done.weights.at) == NotModified(done.weights.at)


def test_who_waits_for_news_is_answered_by_the_commit(world: World) -> None:
    first = world.commit(T1, "one", 1)
    assert world.fetch(S1, first.at, wait_s=60) is None
    second = world.commit(T1, "two", 2)
    assert [answer.weights.at for answer in world.answers.values() if isinstance(answer, Take)] == [second.at]


def test_who_waits_in_vain_hears_that_there_is_nothing_new(world: World) -> None:
    first = world.commit(T1, "one", 1)
    assert world.fetch(S1, first.at, wait_s=60) is None
    world.pass_time(61)
    assert [*world.answers.values()][-1] == NotModified(first.at)


def test_a_commit_that_is_said_again_is_the_same_one_also_after_a_restart(world: World) -> None:
    done = world.commit(T1, "one", 1, size_bytes=9)
    assert world.begin(T1, "one", 1, {"all": 9}) == Bring((), "memory")
    world.crash(host=False, record_landed=False)
    assert world.begin(T1, "one", 1, {"all": 9}) == Bring((), "memory")
    assert world.bring(T1, "one", done.shards[0]) == Accepted()
    answer = world.finish(T1, "one")
    assert isinstance(answer, Done)
    assert answer.weights == done
    assert refused(world.begin(T1, "one", 2, {"all": 9})) == "key-reused"
    assert refused(world.begin(T1, "one", 1, {"all": 8})) == "key-reused"


def test_after_a_lost_answer_only_what_is_missing_is_brought_again(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3, "b": 4})
    world.bring(T1, "k", Shard("a", 3, "A"))
    assert world.begin(T1, "k", 5, {"a": 3, "b": 4}) == Bring(("b",), "memory")


def test_two_writers_of_one_part_are_told_and_the_first_one_counts(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3, "b": 4})
    world.bring(T1, "k", Shard("a", 3, "A"))
    assert refused(world.bring(T1, "k", Shard("a", 3, "other"))) == "shard-differs"
    assert refused(world.bring(T1, "k", Shard("c", 3, "C"))) == "not-announced"
    assert refused(world.bring(T1, "k", Shard("b", 5, "B"))) == "not-announced"
    world.bring(T1, "k", Shard("b", 4, "B"))
    world.settle_down()
    done = world.finish(T1, "k")
    assert isinstance(done, Done)
    assert [shard.digest for shard in done.weights.shards] == ["A", "B"]


@pytest.mark.parametrize("sizes", [{}, {"a": -1}])
def test_what_cannot_be_parts_is_refused(world: World, sizes: dict[str, int]) -> None:
    assert refused(world.begin(T1, "k", 5, sizes)) == "bad-shards"


def test_a_trainer_that_was_replaced_is_refused_and_what_it_had_begun_is_given_up(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3, "b": 4})
    assert world.finish(T1, "k") is None
    world.join(T2, "trainer", 2)
    assert [refused(answer) for answer in world.answers.values() if isinstance(answer, Refused)] == ["superseded"]
    assert not world.staged
    assert refused(world.bring(T1, "k", Shard("a", 3, "A"))) == "superseded"
    assert refused(world.join(T1, "trainer", 3)) == "superseded"
    world.crash(host=True, record_landed=False)
    assert refused(world.begin(T1, "k", 5, {"a": 3})) == "superseded"


def test_an_earlier_start_that_comes_late_does_not_take_the_place_of_a_later_one(world: World) -> None:
    world.join(T2, "trainer", 7)
    assert refused(world.join(Caller("trainer", "t0"), "trainer", 6)) == "superseded"
    assert isinstance(world.begin(T2, "k", 5, {"a": 3}), Bring)


def test_who_has_not_said_hello_is_nobody_and_a_sampler_brings_nothing(world: World) -> None:
    assert refused(world.fetch(Caller("sampler-9", "x"))) == "not-joined"
    assert refused(world.begin(S1, "k", 5, {"a": 3})) == "no-trainer"


def test_a_rollback_is_news_and_what_came_after_is_lost(world: World) -> None:
    first, second = world.commit(T1, "one", 1), world.commit(T1, "two", 2)
    assert taken(world.fetch(S1)) == second.at
    world.roll_back(first.at)
    world.settle_down()
    assert taken(world.fetch(S1, second.at)) == first.at
    assert refused(world.fetch(S1, want="exact", at=second.at)) == "lost-branch"
    assert refused(world.fetch(S1, want="at least", at=second.at)) == "lost-branch"
    assert refused(world.roll_back(second.at)) == "lost-branch"
    # The trainer still has the weights that were rolled back: its next commit would bring them to life again.
    assert refused(world.begin(T1, "three", 3, {"all": 1})) == "lost-branch"  # before it brings a byte
    third = world.commit(T1, "three-again", 3, parent=first.at)
    assert third.at == Commit(1, 3)
    assert third.parent == first.at


def test_who_asks_only_then_hears_why_a_commit_was_given_up(world: World) -> None:
    first, _ = world.commit(T1, "one", 1), world.commit(T1, "two", 2)
    world.begin(T1, "three", 3, {"all": 1})
    world.roll_back(first.at)
    world.settle_down()
    # Its last part is taken in, and only the decision on its parent gives it up; nobody waits for it yet.
    world.bring(T1, "three", Shard("all", 1, "x"))
    assert refused(world.finish(T1, "three")) == "lost-branch"
    assert refused(world.bring(T1, "three", Shard("all", 1, "x"))) == "lost-branch"
    world.begin(T1, "four", 3, {"all": 1}, parent=first.at)
    world.bring(T1, "four", Shard("all", 1, "x"))
    world.record("disk full")
    assert refused(world.finish(T1, "four")) == "not-written"
    assert world.commit(T1, "four", 3, parent=first.at).parent == first.at  # begun anew, it is forgotten


def test_a_trainer_that_outlives_the_service_goes_on_from_what_it_brought_last(world: World) -> None:
    first, second = world.commit(T1, "one", 1), world.commit(T1, "two", 2)
    world.crash(host=False, record_landed=True)
    third = world.commit(T1, "three", 3)
    assert third.parent == second.at
    assert not world.service.catalogue.lost
    assert [*world.service.catalogue.line(third.at)] == [third.at, second.at, first.at]


def test_a_trainer_that_goes_on_from_an_older_step_leaves_a_branch_behind(world: World) -> None:
    first, second, third = (world.commit(T1, key, step) for step, key in enumerate("abc", start=10))
    world.join(T2, "trainer", 2, step=11)
    assert world.service.catalogue.live == third.at  # samplers go on with it until there is news
    fourth = world.commit(T2, "d", 12)
    assert fourth.parent == second.at
    assert world.service.catalogue.lost == {third.at}
    assert world.service.catalogue.durable == fourth.at
    assert fourth.version.step == third.version.step
    assert fourth.at > third.at > first.at


def test_versions_in_memory_outlive_the_service_and_not_the_host() -> None:
    world = World(Settings(memory_bytes=100))
    world.join(T1, "trainer", 1)
    durable = world.commit(T1, "one", 1)
    world.begin(T1, "two", 2, {"all": 1})
    world.bring(T1, "two", Shard("all", 1, "x"))
    world.record()
    assert world.service.catalogue.live == Commit(1, 2)
    world.crash(host=False, record_landed=False)
    assert (world.service.catalogue.live, world.service.catalogue.durable) == (Commit(1, 2), durable.at)
    world.crash(host=True, record_landed=False)
    assert (world.service.catalogue.live, world.service.catalogue.durable) == (durable.at, durable.at)
    assert world.service.catalogue.lost == {Commit(1, 2)}
    assert world.commit(T1, "three", 2, parent=durable.at).at == Commit(3, 3)  # a number is never used twice


def test_a_commit_that_is_to_be_durable_waits_for_the_disk_and_says_when_that_is_full(world: World) -> None:
    world.begin(T1, "one", 1, {"all": 1})
    world.bring(T1, "one", Shard("all", 1, "x"))
    world.record()
    assert world.finish(T1, "one", durable=True) is None
    world.spill("no space left")
    assert refused([*world.answers.values()][-1]) == "not-durable"
    assert world.spilling is None
    world.pass_time(6)
    assert world.finish(T1, "one", durable=True) is None
    world.spill()
    assert world.service.catalogue.durable is None  # on disk, and not yet written down
    world.record()
    assert isinstance([*world.answers.values()][-1], Done)


def test_what_does_not_fit_into_memory_is_brought_to_disk_and_is_durable_at_once() -> None:
    world = World(Settings(memory_bytes=10))
    world.join(T1, "trainer", 1)
    assert world.begin(T1, "big", 1, {"all": 11}) == Bring(("all",), "disk")
    world.bring(T1, "big", Shard("all", 11, "x"))
    world.record()
    assert world.service.catalogue.live == world.service.catalogue.durable == Commit(1, 1)


def test_memory_is_never_more_than_was_given_also_while_a_reader_holds_an_old_version() -> None:
    world = World(Settings(memory_bytes=20))
    world.join(T1, "trainer", 1)
    world.join(S1, "sampler", 1)
    first = world.commit(T1, "one", 1, size_bytes=10)
    assert taken(world.fetch(S1)) == first.at
    second = world.commit(T1, "two", 2, size_bytes=10)
    assert {*world.memory} == {first.at, second.at}
    assert world.begin(T1, "three", 3, {"all": 10}) == Bring(("all",), "disk")
    world.release(S1, first.at)
    world.settle_down()
    assert {*world.memory} == {second.at}
    assert world.begin(T1, "four", 4, {"all": 10}) == Bring(("all",), "memory")


@pytest.mark.parametrize("how", ["silent", "goodbye", "replaced"])
def test_a_reader_that_is_gone_keeps_nothing(world: World, how: str) -> None:
    first = world.commit(T1, "one", 1)
    world.fetch(S1)
    second = world.commit(T1, "two", 2)
    world.settle_down()
    assert first.at in world.memory
    world.leases.clear()
    if how == "silent":
        world.pass_time(61)
    elif how == "goodbye":
        world.say(Goodbye(S1))
    else:
        world.join(Caller("sampler-0", "s2"), "sampler", 2)
    world.settle_down()
    assert {*world.memory} == {second.at}


def test_a_commit_whose_parts_do_not_come_is_given_up_and_says_which(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3, "b": 4})
    world.bring(T1, "k", Shard("a", 3, "A"))
    world.finish(T1, "k")
    world.pass_time(121)
    answer = [*world.answers.values()][-1]
    assert refused(answer) == "commit-timeout"
    assert isinstance(answer, Refused)
    assert answer.facts == {"key": "k", "missing": "b"}
    assert not world.staged


def test_a_commit_can_be_given_up_until_it_is_being_written_down(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3})
    world.say(Abort(T1, "k", "disk full"))
    assert not world.staged
    world.begin(T1, "l", 5, {"a": 3})
    world.bring(T1, "l", Shard("a", 3, "A"))
    world.say(Abort(T1, "l", "too late"))
    world.record()
    assert world.service.catalogue.live == Commit(1, 1)


def test_what_could_not_be_written_down_was_not_done(world: World) -> None:
    world.begin(T1, "k", 5, {"a": 3})
    world.bring(T1, "k", Shard("a", 3, "A"))
    world.finish(T1, "k")
    world.record("disk full")
    assert refused([*world.answers.values()][-1]) == "not-written"
    assert world.service.catalogue.live is None
    assert world.commit(T1, "k", 5).at == Commit(1, 1)


def test_a_version_that_is_about_to_leave_memory_is_not_handed_out_from_there() -> None:
    world = World(Settings(memory_bytes=100))
    world.join(T1, "trainer", 1)
    world.join(S1, "sampler", 1)
    first = world.commit(T1, "one", 1)
    world.begin(T1, "two", 2, {"all": 1})
    world.bring(T1, "two", Shard("all", 1, "x"))
    world.record()
    world.spill()
    world.record()
    assert [erase.at for erase in world.erasing] == [first.at]
    answer = world.fetch(S1, want="exact", at=first.at)
    assert isinstance(answer, Take)
    assert answer.tiers == ("disk",)


def test_a_version_that_is_about_to_leave_the_disk_is_gone() -> None:
    world = World(Settings(memory_bytes=100, disk_keep=1))
    world.join(T1, "trainer", 1)
    world.join(S1, "sampler", 1)
    first = world.commit(T1, "one", 1)
    world.begin(T1, "two", 2, {"all": 1})
    world.bring(T1, "two", Shard("all", 1, "x"))
    world.record()
    world.spill()
    world.record()
    world.erase()
    assert world.recording is not None  # that it is dropped is being written down
    assert refused(world.fetch(S1, want="exact", at=first.at)) == "gone"
    world.record()
    assert refused(world.fetch(S1, want="exact", at=first.at)) == "gone"


def test_what_was_on_disk_and_not_yet_written_down_is_found_again(world: World) -> None:
    world.begin(T1, "one", 1, {"all": 1})
    world.bring(T1, "one", Shard("all", 1, "x"))
    world.record()
    world.spill()
    assert world.service.catalogue.durable is None
    world.crash(host=True, record_landed=False)
    assert world.service.catalogue.live == world.service.catalogue.durable == Commit(1, 1)


def test_a_version_whose_bytes_have_left_the_disk_is_no_base(world: World) -> None:
    first, second = world.commit(T1, "one", 1), world.commit(T1, "two", 2)
    del world.disk[second.at]
    world.crash(host=True, record_landed=False)
    assert world.service.catalogue.live == world.service.catalogue.durable == first.at


def test_news_of_what_was_written_down_long_ago_changes_nothing(world: World) -> None:
    world.begin(T1, "one", 1, {"all": 1})
    world.bring(T1, "one", Shard("all", 1, "x"))
    assert world.recording is not None
    world.say(Recorded(world.recording.ticket - 1))
    assert world.service.catalogue.live is None
    world.say(Spilled(Commit(1, 1)))
    assert world.service.catalogue.durable is None


def test_what_a_decision_sets_off_waits_for_its_turn() -> None:
    records: list[Record] = []
    catalogue = Catalogue([Began(1, None)])
    turns = Turns(catalogue, records.append)  # type: ignore[arg-type]
    joined = [Joined(name, "sampler", "i", 1, None) for name in ("first", "second")]

    def first() -> tuple[Entry, ...]:
        turns.take(Turn(lambda: (joined[1],), lambda: None, lambda _: None))
        return (joined[0],)

    turns.take(Turn(first, lambda: None, lambda _: None))
    assert [record.entries for record in records] == [(joined[0],)]
    turns.recorded(Recorded(records[0].ticket))
    assert [record.entries for record in records] == [(joined[0],), (joined[1],)]


def test_one_kept_on_disk_and_two_in_memory_do_not_chase_each_other() -> None:
    # What the disk does not keep was written to it because it was not there, and dropped because it is not kept, for ever.
    world = World(Settings(memory_bytes=100, memory_keep=3, disk_keep=1))
    world.join(T1, "trainer", 1)
    versions = [world.commit(T1, key, step) for step, key in enumerate("abcd")]
    world.settle_down()
    assert {*world.disk} == {versions[-1].at}
    assert {*world.memory} == {version.at for version in versions[1:]}


def test_a_branch_that_has_only_begun_does_not_cost_the_last_durable_version(world: World) -> None:
    first = world.commit(T1, "one", 1)
    world.join(T2, "trainer", 2)  # from nothing
    world.begin(T2, "k", 1, {"a": 3})
    world.bring(T2, "k", Shard("a", 3, "A"))
    world.record()
    while world.recording or world.erasing:
        world.record() if world.recording else world.erase()
    assert world.service.catalogue.durable is None
    assert first.at in world.disk
    world.settle_down()
    assert world.service.catalogue.durable == Commit(1, 2)
    assert first.at not in world.disk


def test_a_version_knows_which_generation_of_the_trainer_holds_it(world: World) -> None:
    first = world.commit(T1, "one", 1)
    world.ask(lambda request: Link(request, T1, first.at, 42))
    world.settle_down()
    assert Saved(first.at, 42) in world.entries
    assert world.service.catalogue.generations == {first.at: 42}
    assert refused(world.ask(lambda request: Link(request, T1, Commit(1, 9), 43))) == "unknown-version"


def test_an_exact_version_that_never_was_is_refused_and_one_that_may_come_is_waited_for(world: World) -> None:
    world.commit(T1, "one", 1)
    assert refused(world.fetch(S1, wait_s=60, want="exact", at=Commit(0, 7))) == "unknown-version"
    assert world.fetch(S1, wait_s=60, want="exact", at=Commit(1, 2)) is None
    assert refused(world.fetch(S1, want="at least", at=Commit(1, 2))) == "not-yet"
    assert refused(world.fetch(S1, want="exact")) == "no-version"


def test_records_that_do_not_follow_from_each_other_are_damage() -> None:
    with pytest.raises(CorruptError, match="term 1 after term 1") as info:
        Catalogue([Began(1, None), Began(1, None)])
    assert info.value.kind == "bad-entry"


@pytest.mark.parametrize("name", ["memory_bytes", "memory_keep", "disk_keep", "lease_ns", "commit_ns", "retry_ns"])
def test_settings_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Settings(**{"memory_bytes": 1, name: -1})


def test_while_a_trainer_holds_nobody_is_given_weights_and_whoever_waits_gets_those_it_brings(world: World) -> None:
    first = world.commit(T1, "one", 1)
    world.hold(T1)
    assert taken(world.fetch(S1)) == first.at  # it is not written down yet
    world.release(S1, first.at)
    world.record()
    assert [*world.answers.values()][-1] == Accepted()
    assert refused(world.fetch(S1)) == refused(world.fetch(S1, want="exact", at=first.at)) == "held"
    assert world.fetch(S1, wait_s=60) is None
    second = world.commit(T1, "two", 1)
    assert world.fetch(S1, first.at, wait_s=10) is None
    world.pass_time(11)
    assert refused([*world.answers.values()][-1]) == "held"
    world.resume(T1)
    world.record()
    assert [answer.weights.at for answer in world.answers.values() if isinstance(answer, Take)][1:] == [second.at]


def test_a_hold_outlives_the_trainer_and_the_service_until_one_of_its_name_resumes(world: World) -> None:
    world.commit(T1, "one", 1)
    world.hold(T1)
    world.settle_down()
    world.crash(host=False, record_landed=False)
    assert world.service.catalogue.held == {"trainer"}
    other = Caller("other", "o1")
    for caller in (T2, other):
        world.join(caller, "trainer", 2)
    world.join(S1, "sampler", 1)
    assert refused(world.resume(T1)) == "superseded"
    assert world.resume(other) == Accepted()  # it did not hold: the hold of another stays
    assert refused(world.fetch(S1)) == "held"
    world.resume(T2)
    world.settle_down()
    assert isinstance(world.fetch(S1), Take)


def test_to_hold_and_to_resume_may_be_said_again_and_only_by_a_trainer(world: World) -> None:
    for _ in range(2):
        world.hold(T1)
        world.settle_down()
    assert [entry for entry in world.entries if isinstance(entry, Held)] == [Held("trainer")]
    for _ in range(2):
        world.resume(T1)
        world.settle_down()
    assert [entry for entry in world.entries if isinstance(entry, Resumed)] == [Resumed("trainer")]
    assert refused(world.hold(S1)) == "no-trainer"


def test_of_two_that_hold_each_ends_its_own(world: World) -> None:
    world.commit(T1, "one", 1)
    other = Caller("other", "o1")
    world.join(other, "trainer", 1)
    for say in (world.hold, world.resume):
        for caller in (T1, other):
            say(caller)
            world.settle_down()
            assert refused(world.fetch(S1)) == "held" if (say, caller) != (world.resume, other) else taken(world.fetch(S1))


def test_a_hold_that_cannot_be_written_down_is_refused_and_holds_nobody(world: World) -> None:
    world.commit(T1, "one", 1)
    world.hold(T1)
    world.record("disk full")
    assert refused([*world.answers.values()][-1]) == "not-written"
    assert isinstance(world.fetch(S1), Take)


def test_who_went_away_while_waiting_is_answered_no_more_and_holds_nothing(world: World) -> None:
    first = world.commit(T1, "one", 1)
    assert world.fetch(S1, first.at, wait_s=60) is None
    (waiting,) = world.open
    world.cancel(waiting)
    world.commit(T1, "two", 2)
    assert not world.leases
    assert world.service.readers(Commit(1, 2)) == 0


def test_an_answer_that_was_not_heard_gives_nothing_but_what_was_given_twice_stays(world: World) -> None:
    first = world.commit(T1, "one", 1)
    world.fetch(S1)
    (heard,) = [request for request, answer in world.answers.items() if isinstance(answer, Take)]
    world.cancel(heard)
    assert world.service.readers(first.at) == 0
    world.fetch(S1)
    world.fetch(S1)
    lost = [request for request, answer in world.answers.items() if isinstance(answer, Take)][-1]
    world.cancel(lost)
    assert world.service.readers(first.at) == 1
    assert world.service.reads(S1) == (first.at,)


def test_what_stops_waiting_for_a_commit_does_not_stop_the_commit(world: World) -> None:
    world.begin(T1, "k", 1, {"all": 1})
    assert world.finish(T1, "k") is None
    waiting = [*world.open][-1]
    world.cancel(waiting)
    world.bring(T1, "k", Shard("all", 1, "A"))
    world.record()
    assert isinstance(world.finish(T1, "k"), Done)


def test_a_commit_that_is_asked_about_again_after_its_version_was_lost_is_refused(world: World) -> None:
    """The host that had it in memory is gone, and its trainer has not heard of it: it must not take it for live."""
    world.commit(T1, "one", 1)
    world.begin(T1, "two", 2, {"all": 1})
    world.bring(T1, "two", Shard("all", 1, "x"))
    world.record()
    world.crash(host=True, record_landed=False)
    assert refused(world.finish(T1, "two")) == "lost-branch"
    assert refused(world.finish(T1, "two", durable=True)) == "lost-branch"


def test_what_a_reader_does_not_speak_of_twice_is_kept_for_it_no_more(world: World) -> None:
    first, second = world.commit(T1, "one", 1), None
    world.fetch(S1)
    world.say(Heartbeat(S1, frozenset()))  # said before the answer had come, perhaps
    assert world.service.reads(S1) == (first.at,)
    world.say(Heartbeat(S1, frozenset({first.at})))
    world.say(Heartbeat(S1, frozenset()))
    world.say(Heartbeat(S1))
    assert world.service.reads(S1) == (first.at,)
    second = world.commit(T1, "two", 2)
    world.fetch(S1, first.at)
    world.leases.pop((S1, first.at))
    world.say(Heartbeat(S1, frozenset({second.at})))
    assert world.service.reads(S1) == (second.at,)


def test_what_a_reader_has_is_kept_for_it_also_by_a_service_that_did_not_give_it(world: World) -> None:
    first = world.commit(T1, "one", 1)
    world.fetch(S1)
    world.crash(host=False, record_landed=False)
    never = Commit(1, 9)
    world.say(Heartbeat(Caller("sampler-0", "s0"), frozenset({first.at})))
    assert world.service.readers(first.at) == 0
    world.say(Heartbeat(S1, frozenset({first.at, never})))
    assert world.service.reads(S1) == (first.at,)
    world.say(Release(S1, first.at))
    assert world.service.reads(S1) == ()
