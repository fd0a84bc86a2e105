"""One save at a time: what it may touch before it counts, what moves when it does, what it says of its base (9 to 13, 27)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, CorruptError, SaveFailed, StoreError
from milepost.lifecycle.recover import choose
from milepost.lifecycle.retain import Keep
from milepost.publish import layout
from milepost.publish.manifest import encode
from milepost.publish.pins import pin
from milepost.records import Summary
from milepost.testing.faults import FaultStore, Killed, Late
from tests.publish.summaries import generation
from tests.publish.world import World, Writer, blobs_of

NAN = float("nan")


def faults(writer: Writer) -> FaultStore:
    assert isinstance(writer.store, FaultStore)
    return writer.store


def damage(world: World, generation_: Summary, blob: int = 0) -> None:
    """Flip one bit in a blob."""
    name = generation_.blobs[blob].name
    data = bytearray(world.plain().read(name))
    data[-1] ^= 1
    world.plain().replace(name, bytes(data))


# --- before it counts ---------------------------------------------------------------------------------------------------


def test_a_blob_whose_fsync_failed_is_written_anew_under_another_name(world: World) -> None:
    a = world.open()
    faults(a).fail("commit_blob", "blobs/*", StoreError("io error", kind="io", retryable=False))
    saved = a.save(1)
    first, second = faults(a).names_asked("open_blob")
    assert first != second
    assert [blob.name for blob in saved.blobs] == [second]
    assert world.names(layout.BLOBS) == [second]
    world.check(saved)


@pytest.mark.parametrize("operation", ["open_blob", "write_blob", "commit_blob"])
def test_a_blob_that_fails_twice_fails_the_save_and_leaves_everything_as_it_was(world: World, operation: str) -> None:
    a = world.open()
    first = a.save(1)
    before = set(world.names()) - {layout.PROGRESS}
    base, head = a.session.base, a.session.chain.head
    faults(a).fail(operation, "blobs/*", StoreError("io error", kind="io", retryable=False), times=2)
    with pytest.raises(StoreError):
        a.save(2)
    assert (a.session.base, a.session.chain.head, a.session.chain.next) == (base, head, 2)
    assert set(world.names()) - {layout.PROGRESS} == before
    second = a.save(2)
    assert (second.number, second.parent) == (2, 1)
    world.check(first, second)


def test_base_and_head_move_only_when_the_manifest_is_known_to_be_there(world: World) -> None:
    a = world.open()
    first = a.save(1, fixed=1)
    faults(a).fail("create", layout.manifest(2), times=2)
    with pytest.raises(StoreError):
        a.save(2, fixed=2)
    assert (a.session.base, a.session.chain.head) == (first, a.session.chain.live[1])
    again = a.save(3, fixed=2)
    assert not blobs_of(again) & set(faults(a).names_asked("open_blob")[:2])  # nothing from the attempt, nothing of generation 1
    world.check(first, again)


def test_nothing_is_deleted_before_the_manifest_that_drops_it_is_there_and_synced(world: World) -> None:  # rule 14
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    start = len(faults(a).operations)
    a.save(2, fixed=2)
    asked = [(op.operation, op.name) for op in faults(a).operations[start:]]
    steps = [
        ("create", layout.manifest(2)),
        ("list", layout.TERMS),
        ("replace", layout.LATEST),
        ("list", layout.PINS),
        ("delete", layout.manifest(1)),
        ("sync", layout.GENERATIONS),
    ]
    positions = [max(index for index, op in enumerate(asked) if op == step) for step in steps]
    assert positions == sorted(positions)
    assert positions[-1] < min(i for i, (op, name) in enumerate(asked) if op == "delete" and name.startswith(layout.BLOBS))


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_a_writer_killed_at_any_operation_of_a_save_leaves_the_last_generation_or_the_new_one(world: World) -> None:
    a = world.open()
    for value in (1, 2):
        a.save(value, fixed=7)
    finished = False
    for number in itertools.count():
        trial = world.copy(number)
        dying = trial.open()
        faults(dying).kill_before(len(faults(dying).operations) + number)
        try:
            dying.save(3, fixed=7)
            finished = True
        except Killed:
            pass
        trial.check()
        assert trial.value() in ((3,) if finished else (2, 3))
        created = layout.manifest(3) in faults(dying).names_asked("create")
        survivor = trial.open()
        assert survivor.head == (3 if created and trial.value() == 3 else 2)
        assert set(trial.names(layout.BLOBS)) == blobs_of(*trial.check().live.values())
        assert survivor.save(4).parent == survivor.head
        if finished:
            break
    assert number > 10


# --- what counts --------------------------------------------------------------------------------------------------------


def test_a_save_under_way_when_the_fence_appears_is_not_acknowledged(world: World) -> None:  # rule 13
    a = world.open()
    a.save(1)
    gate = faults(a).pause("create", layout.manifest(2))
    late = world.start(lambda: a.save(2))
    gate.wait_until_reached()
    b_store = world.process()
    settling = b_store.pause("create", layout.settlement(2))
    b = world.start(lambda: world.open(b_store))
    settling.wait_until_reached()
    gate.release()
    with pytest.raises(ConflictError) as caught:
        late.result()
    assert caught.value.kind == "fenced"
    settling.release()
    assert b.result().head == 1
    assert world.view().void == {2}


def test_a_number_that_a_higher_term_holds_means_fenced(world: World) -> None:  # rule 11
    a = world.open()
    a.save(1)
    held = generation(2, term=5, run_id=a.session.run_id)
    world.plain().create(layout.manifest(2), encode(held))
    with pytest.raises(ConflictError) as caught:
        a.save(2)
    assert (caught.value.kind, caught.value.facts["claimed_by_term"]) == ("fenced", 5)


def test_a_number_that_cannot_be_read_is_stepped_over_and_nothing_below_it_is_deleted(world: World) -> None:  # rule 3a
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    world.plain().create(layout.manifest(2), b"torn")
    saved = [a.save(value, fixed=value) for value in (3, 4, 5)]
    assert [manifest.number for manifest in saved] == [3, 4, 5]
    assert world.numbers() == [1, 2, 5]
    assert blobs_of(a.opened.session.chain.dropped[1]) <= set(world.names(layout.BLOBS))


def test_a_number_held_by_a_copy_of_another_generation_is_stepped_over(world: World) -> None:  # rule 3a
    a = world.open()
    a.save(1)
    world.plain().create(layout.manifest(2), world.plain().read(layout.manifest(1)))  # of our own term
    saved = [a.save(2), a.save(3)]
    assert [manifest.number for manifest in saved] == [3, 4]
    assert [manifest.parent for manifest in saved] == [1, 3]
    world.check(*saved)


def test_keep_takes_no_dead_number_in_again(world: World) -> None:  # rule 2
    a = world.open(keep=Keep(last=1))
    for value in (1, 2):
        a.save(value)
    b = world.open()
    manifest = b.rollback(2, keep=lambda live, _pinned: frozenset({1, 2, 99}))
    assert manifest.keep == (2,)


def test_a_line_names_only_what_is_kept(world: World) -> None:  # rule 27
    a = world.open(keep=Keep(last=2))
    assert [a.save(value).line for value in (1, 2, 3, 4)] == [(1,), (1, 2), (2, 3), (3, 4)]


def test_timestamps_rise_though_the_clock_goes_back(world: World) -> None:
    a = world.open()
    stamps = [a.save(1).commit_timestamp]
    a.clock.epoch_ns -= 10**15
    stamps.append(a.save(2).commit_timestamp)
    b = world.open()
    b.clock.epoch_ns -= 10**15
    stamps += [b.save(3).commit_timestamp, b.save(4).commit_timestamp]
    assert stamps == sorted(set(stamps))


def test_a_manifest_repeats_what_its_term_settled_on(world: World) -> None:  # rule 3a
    world.open().save(1)
    b = world.open()
    saved = b.save(2)
    settled = b.opened.claimed.settlement
    assert (saved.term, saved.term_head, saved.term_next) == (2, settled.head, settled.next) == (2, 1, 2)


def test_bytes_that_did_not_change_are_named_and_not_written_again(world: World) -> None:
    a = world.open()
    first, second = a.save(1, fixed=7), a.save(2, fixed=7)
    assert blobs_of(first) < blobs_of(second)
    world.check(first, second)
    assert (world.value(1), world.value(2)) == (1, 2)


# --- health -------------------------------------------------------------------------------------------------------------


def test_five_generations_of_nan_do_not_push_out_the_last_good_one(world: World) -> None:
    a = world.open(keep=Keep(last=2))
    a.save(1)
    good = a.save(2)
    sick = [a.save(NAN) for _ in range(5)]
    assert not any(manifest.healthy for manifest in sick)
    assert sick[-1].nonfinite == ("policy/w",)
    view = world.check(good, *sick[-2:])
    assert set(view.live) == {2, 6, 7}
    chosen = choose(world.plain(), view)
    assert chosen.manifest is not None
    assert (chosen.manifest.number, [skip.kind for skip in chosen.skipped]) == (2, ["unhealthy", "unhealthy"])


def test_an_infinity_in_a_replay_buffer_is_not_a_sickness(world: World) -> None:
    assert world.open().save(1, fixed=float("inf")).healthy


# --- a base that is not the head (rule 27) ------------------------------------------------------------------------------


class Training:
    """Train through the engine, as a user does: one policy, a buffer that never changes."""

    def __init__(self, world: World, keep: Keep | None = None) -> None:
        self.policy = {"w": np.zeros(8), "fixed": np.arange(512.0)}
        self.engine = CheckpointEngine(
            world.plain(), state={"policy": self.policy}, writer="inline", keep=keep, clock=world.clock(), take_over=True
        )

    def save(self, value: float) -> Summary:
        self.policy["w"][:] = value
        self.engine.save(int(value))
        head = self.engine.wait()
        assert head is not None
        return head

    def value(self) -> float:
        return float(self.policy["w"][0])


def test_resume_from_a_number_then_save_says_what_it_stands_on_and_keeps_its_blobs(world: World) -> None:
    first = Training(world, Keep(last=2))
    with first.engine:
        for value in (1, 2, 3):
            first.save(value)
    second = Training(world, Keep(last=2))
    with second.engine:
        restored = second.engine.resume(2)
        assert restored is not None
        assert (restored.generation, second.value()) == (2, 2)
        fourth = second.save(20)
        assert (fourth.number, fourth.parent, fourth.rollback_to) == (4, 3, 2)
        fifth = second.save(21)
        assert (fifth.parent, fifth.rollback_to) == (4, None)
        for value in (22, 23):
            second.save(value)
        view = world.check()
        assert set(view.live) == {2, 6, 7}  # two newest, and what this process resumed from
        assert view.live[2].blobs[-1].name in blobs_of(view.live[7])  # what never changed lies where it always lay


def test_every_load_resets_the_base(world: World) -> None:
    training = Training(world)
    with training.engine:
        training.save(1)
        training.policy["fixed"][:] = 5
        second = training.save(2)
        training.engine.resume(1)
        third = training.save(3)
        assert (third.rollback_to, third.parent) == (1, 2)
        assert not blobs_of(third) & (blobs_of(second) - blobs_of(world.view().live[1]))
        assert float(training.policy["fixed"][3]) == 3
    world.check()


def test_resume_past_a_damaged_head_then_save_stands_on_the_sound_one(world: World) -> None:
    first = Training(world)
    with first.engine:
        first.save(1)
        first.policy["fixed"][:] = 5
        damage(world, first.save(2))
    second = Training(world)
    with second.engine:
        restored = second.engine.resume()
        assert restored is not None
        assert (restored.generation, second.value()) == (1, 1)
        assert "generation 2 damaged" in restored.skipped[0]
        third = second.save(3)
        assert (third.parent, third.rollback_to) == (2, 1)
        assert third.blobs[-1].name == world.view().live[1].blobs[0].name
    assert world.value() == 3


def test_starting_anew_keeps_what_was_there_until_two_new_generations_exist(world: World) -> None:
    first = Training(world, Keep(last=2))
    with first.engine:
        for value in (1, 2, 3):
            first.save(value)
    second = Training(world, Keep(last=1))
    with second.engine:
        assert second.engine.resume("never") is None
        fourth = second.save(40)
        assert (fourth.parent, fourth.rollback_to) == (3, 0)
        assert not blobs_of(fourth) & blobs_of(world.view().live[2], world.view().live[3])
        assert set(world.check().live) == {2, 3, 4}
        fifth = second.save(41)
        assert fifth.rollback_to is None
        assert set(world.check().live) == {5}


def resume_an_older_one(training: Training) -> None:
    training.engine.resume(1)


def start_anew(training: Training) -> None:
    training.engine.resume("never")


def fall_back(training: Training) -> None:
    assert training.engine.resume() is not None


@pytest.mark.parametrize("turn", [resume_an_older_one, start_anew, fall_back])
def test_the_first_generation_after_a_change_of_base_keeps_all_that_the_old_head_kept(
    world: World, turn: Callable[[Training], None]
) -> None:
    first = Training(world, Keep(last=3))
    with first.engine:
        for value in (1, 2, 3):
            first.policy["fixed"][:] = value
            third = first.save(value)
    if turn is fall_back:
        damage(world, third)
    second = Training(world, Keep(last=1))
    with second.engine:
        turn(second)
        assert second.save(4).keep == (1, 2, 3, 4)
        assert world.numbers() == [1, 2, 3, 4]
        fifth = second.save(5)
        # What this process resumed from stays; the rest is left to retention now.
        assert fifth.keep == {resume_an_older_one: (1, 5), start_anew: (5,), fall_back: (2, 5)}[turn]
    assert world.value() == 5


def test_a_full_disk_takes_nothing_of_what_a_change_of_base_left_behind(world: World) -> None:  # rules 16 and 27
    a = world.open(keep=Keep(last=5))
    saved = [a.save(value, fixed=value) for value in (1, 2, 3)]
    a.stand_on(1)
    fourth = a.save(4, fixed=4)
    assert fourth.rollback_to == 1
    faults(a).fail("write_blob", "blobs/000005*", StoreError("full", kind="disk-full", retryable=False), times=None)
    with pytest.raises(StoreError):
        a.save(5, fixed=5)
    assert world.numbers() == [1, 2, 3, 4]
    world.check(*saved, fourth)


def left_behind(world: World, turn: str) -> Summary:
    """Publish 1, 2 and 3, go back to 1 or start anew, and publish one more; return that."""
    first = Training(world)
    with first.engine:
        for value in (1, 2, 3):
            first.policy["fixed"][:] = value
            first.save(value)
    if turn == "rollback":
        oneshot.rollback(world.plain(), 1)
    second = Training(world)
    with second.engine:
        second.engine.resume({"number": 1, "never": "never", "rollback": "latest"}[turn])  # type: ignore[arg-type]
        second.policy["fixed"][:] = 50
        return second.save(50)


@pytest.mark.parametrize(("turn", "line", "to"), [("number", (1, 4), 1), ("rollback", (1, 4, 5), 4)])
def test_a_fallback_goes_only_where_the_damaged_head_came_from(world: World, turn: str, line: tuple[int, ...], to: int) -> None:
    head = left_behind(world, turn)
    assert head.line == line
    damage(world, head)
    assert oneshot.verify(world.plain()).resume_from == to
    assert world.value() == 1
    again = Training(world)
    with again.engine:
        restored = again.engine.resume()
        assert restored is not None
        assert (restored.generation, again.value()) == (to, 1)
        next_one = again.save(60)
        assert (next_one.parent, next_one.rollback_to) == (head.number, to)
        assert set(next_one.line) == {*line} - {head.number} | {next_one.number}
    world.open()
    assert world.value() == 60


@pytest.mark.parametrize("turn", ["number", "never", "rollback"])
def test_what_was_left_behind_is_never_resurrected_but_named(world: World, turn: str) -> None:
    head = left_behind(world, turn)
    damage(world, head)
    older = {world.view().live[number].blobs[-1].name: number for number in {*head.line} - {head.number}}
    for number in older.values():  # a rollback shares its blobs with what it went back to
        damage(world, world.view().live[number], blob=-1)
    again = Training(world)
    with again.engine:
        with pytest.raises(CorruptError) as caught:
            again.engine.resume()
        assert caught.value.kind == "nothing-valid"
        others = {"number": "3, 2", "never": "3, 2, 1", "rollback": "3, 2"}[turn]
        assert caught.value.facts["left_behind_but_there"] == others
        with pytest.raises(CorruptError):
            again.engine.adopt()
        with pytest.raises(CorruptError) as caught:
            oneshot.load(world.plain())
        assert caught.value.facts["left_behind_but_there"] == others
        assert oneshot.verify(world.plain()).resume_from is None
        restored = again.engine.resume(3)  # by an operator's word
        assert restored is not None
        assert (restored.generation, again.value()) == (3, 3)
        saved = again.save(60)
        assert saved.rollback_to == 3
        assert {3, saved.number} <= set(saved.line)
    assert world.value() == 60


def test_best_is_chosen_along_the_line_only(world: World) -> None:
    def metric(training: Training, value: float) -> None:
        training.engine.report(int(value), {"eval/return": value})
        training.save(value)

    keep = Keep(last=5, best=1, by="eval/return")
    first = Training(world, keep)
    with first.engine:
        metric(first, 1)
        metric(first, 9)
    second = Training(world, keep)
    with second.engine:
        second.engine.resume(1)
        metric(second, 2)
        restored = second.engine.resume("best")
        assert restored is not None
        assert restored.generation == 3


# --- an attempt that turns out published (rules 11 and 27) --------------------------------------------------------------


def fail_unknown(writer: Writer, value: float) -> Late:
    """Save with an unknown outcome; return the request that may still land."""
    name = layout.manifest(writer.session.chain.next)
    late, _ = faults(writer).delay("create", name), faults(writer).delay("create", name, nth=2)
    with pytest.raises(StoreError):
        writer.save(value)
    return late


def test_an_attempt_that_turns_out_published_is_the_base_of_the_next_save(world: World) -> None:
    a = world.open(keep=Keep(last=5))
    a.save(1)
    a.save(2)
    late = fail_unknown(a, 3)
    faults(a).deliver(late)
    saved = a.save(4)
    assert (saved.parent, saved.rollback_to, saved.line) == (3, None, (1, 2, 3, 4))
    world.check(saved)


def test_an_attempt_before_a_load_becomes_the_parent_but_not_the_base(world: World) -> None:
    a = world.open(keep=Keep(last=5))
    for value in (1, 2):
        a.save(value, fixed=value)
    late = fail_unknown(a, 3)
    a.stand_on(1)
    faults(a).deliver(late)
    saved = a.save(4, fixed=1)
    assert (saved.parent, saved.rollback_to, saved.line, saved.keep) == (3, 1, (1, 4), (1, 2, 3, 4))
    world.check(saved)
    damage(world, saved)
    assert world.value() == 1  # and not 3


def test_of_two_attempts_the_one_before_the_load_is_no_base_and_the_one_after_it_is(world: World) -> None:
    for first_lands, base, line in ((True, 1, (1, 4)), (False, None, (1, 3, 4))):
        trial = world.copy(int(first_lands))
        a = trial.open(keep=Keep(last=5))
        for value in (1, 2):
            a.save(value, fixed=value)
        before = fail_unknown(a, 30)
        a.stand_on(1)
        after = fail_unknown(a, 31)
        faults(a).deliver(before if first_lands else after)
        saved = a.save(4, fixed=1)
        assert (saved.parent, saved.rollback_to, saved.line) == (3, base, line)
        trial.check(saved)
        assert trial.value(3) == (30 if first_lands else 31)


def test_an_attempt_before_a_fresh_start_is_no_base(world: World) -> None:
    a = world.open(keep=Keep(last=5))
    a.save(1)
    late = fail_unknown(a, 2)
    a.session.build_on(None)
    faults(a).deliver(late)
    saved = a.save(4)
    assert (saved.parent, saved.rollback_to, saved.line, saved.keep) == (2, 0, (3,), (1, 2, 3))


def test_with_nothing_left_to_fall_back_to_the_engine_refuses_to_save(world: World) -> None:
    first = Training(world)
    with first.engine:
        damage(world, first.save(1))
    second = Training(world)
    with second.engine:
        with pytest.raises(CorruptError) as caught:
            second.engine.resume()
        assert caught.value.kind == "nothing-valid"
        with pytest.raises(Exception, match="resume"):
            second.engine.save(2)
        assert second.engine.resume("never") is None
        assert second.save(2).number == 2


def test_the_base_of_the_save_that_waits_for_room_does_not_make_it(world: World) -> None:  # rule 16
    a = world.open(keep=Keep(last=5))
    saved = [a.save(value, fixed=value) for value in (1, 2, 3)]
    a.session.base = saved[0]
    pin(world.plain(), 2)
    faults(a).fail("write_blob", "blobs/000004*", StoreError("full", kind="disk-full", retryable=False))
    with pytest.raises(StoreError) as caught:
        a.save(9, fixed=1)  # shares with generation 1: that must not make room
    assert caught.value.kind == "disk-full"
    world.check(*saved)


def test_a_save_that_failed_is_raised_once_and_the_next_one_goes_on(world: World) -> None:
    store = world.process()
    policy = {"w": np.zeros(4)}
    engine = CheckpointEngine(store, state={"policy": policy}, writer="inline", clock=world.clock())
    with engine:
        engine.save(1)
        store.fail("write_blob", "blobs/*", StoreError("io", kind="io", retryable=False), times=2)
        policy["w"][:] = 1
        with pytest.raises(SaveFailed) as caught:
            engine.save(2)
        assert caught.value.kind == "io"
        engine.save(3)
        assert engine.wait() is not None
    assert world.view().live[2].step == 3
