"""Where a run goes on from: the newest that is live, complete, healthy and sound; never silently from nothing (B4, B7, B16)."""

from __future__ import annotations

import pytest

from milepost.engine import oneshot
from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.lifecycle.recover import Choice, Skipped, Which, choose
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, quarantine
from milepost.publish.pins import pin
from milepost.records import Manifest, Metric
from tests.publish.world import World, Writer, done

NAN = float("nan")


def pick(world: World, which: Which = "latest", **more: object) -> Choice:
    return choose(world.plain(), world.view(), which, **more)  # type: ignore[arg-type]


def number(choice: Choice) -> int | None:
    return choice.manifest.number if choice.manifest else None


def flip(world: World, name: str) -> None:
    data = bytearray(world.plain().read(name))
    data[-1] ^= 1
    world.plain().replace(name, bytes(data))


def spoil(world: World, manifest: Manifest, how: str) -> None:
    blob = manifest.blobs[0].name
    data = world.plain().read(blob)
    if how == "flipped":
        flip(world, blob)
    elif how == "gone":
        world.plain().delete(blob)
    else:
        changed = {"truncated": data[:-1], "empty": b"", "longer": data + b"\0"}[how]
        world.plain().replace(blob, changed)


def saved(world: World, *values: float, keep: int = 9) -> tuple[Writer, list[Manifest]]:
    a = world.open(keep=Keep(last=keep))
    return a, [a.save(value, fixed=value) for value in values]


def test_a_run_without_a_save_starts_anew(world: World) -> None:
    world.open()
    assert pick(world) == Choice(None)
    assert pick(world, "best") == Choice(None)
    with pytest.raises(NotFoundError):
        pick(world, 7)


def test_never_starts_anew_whatever_is_there(world: World) -> None:
    saved(world, 1)
    assert pick(world, "never") == Choice(None)


@pytest.mark.parametrize("how", ["flipped", "gone", "truncated", "empty", "longer"])
@pytest.mark.parametrize("full", [True, False])
def test_a_damaged_newest_generation_is_passed_over_and_named(world: World, how: str, full: bool) -> None:
    _, manifests = saved(world, 1, 2, 3)
    spoil(world, manifests[2], how)
    choice = pick(world, full=full)
    if how == "flipped" and not full:  # only reading every byte tells
        assert number(choice) == 3
        return
    assert number(choice) == 2
    [skip] = choice.skipped
    assert (skip.number, skip.kind) == (3, "damaged")
    assert manifests[2].blobs[0].name in str(skip)
    assert "replay" in str(skip) or how == "longer"


def test_damage_in_a_shared_blob_takes_all_that_share_it(world: World) -> None:
    a = world.open(keep=Keep(last=9))
    a.save(1, fixed=1)
    shared = [a.save(value, fixed=7) for value in (2, 3, 4)]
    flip(world, shared[0].blobs[0].name)
    choice = pick(world)
    assert (number(choice), [skip.number for skip in choice.skipped]) == (1, [4, 3, 2])


def test_an_unreadable_manifest_is_passed_over_and_named(world: World) -> None:
    saved(world, 1, 2)
    flip(world, layout.manifest(2))
    choice = pick(world)
    assert (number(choice), [(skip.number, skip.kind) for skip in choice.skipped]) == (1, [(2, "unreadable")])


def test_an_unhealthy_generation_is_passed_over_unless_it_is_asked_for(world: World) -> None:
    saved(world, 1, NAN)
    choice = pick(world)
    assert (number(choice), choice.skipped) == (1, (Skipped(2, "unhealthy", "not finite: policy/w"),))
    assert number(pick(world, 2)) == 2


def test_a_complete_generation_comes_before_newer_ones_saved_in_a_hurry(world: World) -> None:
    a, _ = saved(world, 1, 2)
    a.save(3, complete=False)
    assert number(pick(world)) == 2
    assert number(pick(world, 3)) == 3
    for old in (1, 2):
        spoil(world, world.view().live[old], "gone")  # type: ignore[arg-type]
    assert number(pick(world)) == 3


def test_what_cannot_be_taken_as_complete_is_taken_newest_first(world: World) -> None:
    a = world.open(keep=Keep(last=9))
    a.save(1, complete=False)
    a.save(2, complete=False)
    assert number(pick(world)) == 2


def test_data_of_which_nothing_is_valid_is_an_error_and_no_fresh_start(world: World) -> None:
    _, manifests = saved(world, 1, 2)
    for manifest in manifests:
        spoil(world, manifest, "flipped")
    with pytest.raises(CorruptError) as caught:
        pick(world)
    assert (caught.value.kind, caught.value.exit_code) == ("nothing-valid", 14)
    for text in ("generation 1 damaged", "generation 2 damaged", "milepost verify", 'which="never"'):
        assert text in str(caught.value)


def test_manifests_none_of_which_can_be_read_are_an_error_and_no_fresh_start(world: World) -> None:
    saved(world, 1)
    flip(world, layout.manifest(1))
    with pytest.raises(CorruptError) as caught:
        pick(world)
    assert caught.value.kind == "nothing-valid"


def test_a_number_is_that_generation_or_an_error(world: World) -> None:
    _, manifests = saved(world, 1, 2, 3, keep=2)
    assert number(pick(world, 2)) == 2
    for missing in (1, 9, 0, -1):
        with pytest.raises(NotFoundError) as caught:
            pick(world, missing)
        assert (caught.value.kind, caught.value.facts["generation"]) == ("no-such-generation", missing)
    spoil(world, manifests[1], "flipped")
    with pytest.raises(CorruptError) as damaged:
        pick(world, 2)
    assert "generation 2 damaged" in str(damaged.value)


@pytest.mark.parametrize("which", ["newest", True, 1.5, None])
def test_a_word_that_means_nothing_is_refused(world: World, which: object) -> None:
    saved(world, 1)
    with pytest.raises(UsageError) as caught:
        pick(world, which)  # type: ignore[arg-type]
    assert caught.value.kind == "bad-which"


def test_what_is_marked_as_killing_its_loader_is_skipped_even_if_asked_for(world: World) -> None:
    a, _ = saved(world, 1, 2)
    run_id = a.session.run_id
    quarantine.mark(world.plain(), world.clock(), run_id=run_id, term=1, number=2, kind="kills-loader", reason="dies")
    assert (number(pick(world)), pick(world).skipped) == (1, (Skipped(2, "kills-loader", "dies"),))
    with pytest.raises(CorruptError):
        pick(world, 2)


def test_a_mark_of_damage_is_checked_again_and_reported_as_cleared(world: World) -> None:
    a, _ = saved(world, 1, 2)
    run_id = a.session.run_id
    quarantine.mark(world.plain(), world.clock(), run_id=run_id, term=1, number=2, kind="damaged", reason="bad")
    assert (number(pick(world)), pick(world).cleared) == (2, (2,))


def test_what_failed_while_it_was_loaded_is_not_tried_again(world: World) -> None:
    saved(world, 1, 2)
    failed = Skipped(2, "load-failed", "the optimizer refused it")
    choice = pick(world, rejected=(failed,))
    assert (number(choice), choice.skipped) == (1, (failed,))


def test_every_byte_of_what_is_taken_has_been_read(world: World) -> None:
    _, manifests = saved(world, 1)
    assert pick(world).checked_bytes == manifests[0].total_bytes
    assert pick(world, full=False).checked_bytes == 0


def scored(world: World, *values: float) -> list[Manifest]:
    """Publish generations that carry a score."""
    from milepost.engine.arena import Arena
    from milepost.engine.capture import capture
    from milepost.engine.relief import write_with_relief
    from milepost.engine.session import Order

    a = world.open(keep=Keep(last=9))
    return [
        write_with_relief(
            a.session,
            capture({"policy": {"w": [float(at)]}, "extra": {"at": at}}, Arena()),
            Order(at, "test", metrics={"score": Metric(value.hex(), at)}),
        )
        for at, value in enumerate(values)
    ]


def test_best_is_by_the_metric_and_falls_back_to_the_next_best(world: World) -> None:
    scored(world, 1.0, 9.0, NAN, 9.0, 2.0)
    assert number(pick(world, "best", by="score")) == 4
    assert number(pick(world, "best", by="score", mode="min")) == 1
    world.plain().delete(layout.manifest(4))
    assert number(pick(world, "best", by="score")) == 2


def test_best_without_a_metric_or_without_a_value_says_so(world: World) -> None:
    saved(world, 1)
    with pytest.raises(UsageError) as caught:
        pick(world, "best")
    assert caught.value.kind == "no-metric"
    with pytest.raises(NotFoundError):
        pick(world, "best", by="score")


# --- readers beside training (rule 20) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["generations/000001.json", "blobs/*"])
@pytest.mark.parametrize("parts", [None, ["policy"]])
def test_a_reader_whose_generation_is_retired_under_its_feet_reads_the_newer_one(
    world: World, pattern: str, parts: list[str] | None
) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    store = world.process()
    nth = 2 if pattern.startswith("generations") else 1
    gate = store.pause("read" if nth == 2 else "read_into", pattern, nth=nth)
    reader = world.start(lambda: oneshot.load(store, parts=parts))
    gate.wait_until_reached()
    a.save(2, fixed=2)
    gate.release()
    tree = done(reader)
    assert isinstance(tree, dict)
    assert float(tree["policy"]["w"][0]) == 2


def test_a_reader_whose_head_is_retired_is_not_sent_back_to_an_older_one_that_a_pin_keeps(world: World) -> None:
    a = world.open(keep=Keep(last=1))
    a.save(1, fixed=1)
    pin(world.plain(), 1)
    a.save(2, fixed=2)
    store = world.process()
    gate = store.pause("read_into", "blobs/*")
    reader = world.start(lambda: oneshot.load(store))
    gate.wait_until_reached()
    a.save(3, fixed=3)
    gate.release()
    tree = done(reader)
    assert isinstance(tree, dict)
    assert float(tree["policy"]["w"][0]) == 3


def test_a_reader_of_a_damaged_head_is_not_sent_round_in_circles(world: World) -> None:
    _, manifests = saved(world, 1)
    spoil(world, manifests[0], "gone")
    with pytest.raises(CorruptError):
        oneshot.load(world.plain())


def test_a_component_that_is_not_there_is_named(world: World) -> None:
    saved(world, 1)
    with pytest.raises(NotFoundError) as caught:
        oneshot.load(world.plain(), parts=["value"])
    assert (caught.value.kind, caught.value.facts["component"]) == ("no-such-component", "value")


def test_a_pinned_generation_can_be_asked_for_by_number(world: World) -> None:
    a, _ = saved(world, 1, keep=1)
    pin(world.plain(), 1)
    a.save(2, fixed=2)
    a.save(3, fixed=3)
    assert number(pick(world, 1)) == 1
