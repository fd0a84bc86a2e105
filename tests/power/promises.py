"""What must hold after a power cut: what was promised before it, and that one can go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.engine import oneshot
from milepost.engine.reader import build
from milepost.errors import NotFoundError
from milepost.publish import layout
from milepost.publish.hints import read_progress
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import View, read
from milepost.store.base import Store
from milepost.testing.power import Cut
from tests.engine.training import Training, bits, local
from tests.power.acts import RUN, bits_at

AFTERWARDS = 9
"""The step of the save after each cut."""


def acknowledged_by(cut: Cut) -> dict[int, int]:
    """Return the step of each generation that anybody was told of, by `wait()` or by an event, and that no reset set aside."""
    names = [note.name for note in cut.notes]
    since = names.index("reset") if "reset" in names else 0
    told = {(note.facts["number"], note.facts["step"]) for note in cut.notes if note.name == "acknowledged"}
    told |= {(event["generation"], event["step"]) for event in cut.events if event["event"] == "published"}
    aside = {note.facts["number"] for note in cut.notes[:since] if note.name == "acknowledged"}
    return {number: step for number, step in told if number not in aside}


def standing(cut: Cut, begins: str, ends: str) -> set[int]:
    """Return the numbers for which ``begins`` was noted, and ``ends`` not yet."""
    return {facts["number"] for facts in cut.noted(begins)} - {facts["number"] for facts in cut.noted(ends)}


def check(cut: Cut, place: Path, wrap: Callable[[Store], Store] = lambda store: store) -> None:
    """Hold a run root to what was promised before the power was cut, then go on from there."""
    store = wrap(local(place / RUN))
    view = check_what_is_there(cut, store)
    check_the_next_start(cut, store, view)
    check_the_reset(cut, place / RUN)


def check_what_is_there(cut: Cut, store: Store) -> View | None:
    acknowledged = acknowledged_by(cut)
    try:
        view = read(store)
    except NotFoundError:
        assert not acknowledged
        return None
    check_no_damage(cut, store)
    if cut.noted("reset"):
        assert view.terms.resets, "a reset stays"
    barred = {number for number, mark in view.marks.items() if mark.kind == "kills-loader"}
    for number, summary in view.live.items():
        # No half generation is ever visible: whatever is live is whole, acknowledged or not.
        assert number in barred or loaded(store, number) == bits_at(summary.step), number
    if not is_reset_without_a_word(cut, view):
        assert (view.head.number if view.head else 0) >= max(acknowledged, default=0), acknowledged
        assert all(summary.step == acknowledged.get(number, summary.step) for number, summary in view.live.items())
    held = {number for number, pin in view.pins.items() if pin.state == "held"}
    assert standing(cut, "pinned", "unpinning") <= view.live.keys() & held
    assert standing(cut, "unpinned", "pinning").isdisjoint(view.pins), "an unpin that was acknowledged stays"
    assert standing(cut, "marked", "clearing") & view.listing.summaries.keys() <= view.marks.keys()
    assert standing(cut, "cleared", "marking").isdisjoint(view.marks)
    return view


def loaded(store: Store, number: int) -> Any:
    """Load one live generation, and spare the look at all the others that `milepost.load` takes."""
    name = layout.manifest(number)
    return bits(build(store, decode_manifest(store.read(name), name), None, trust_pickle=False))


def is_reset_without_a_word(cut: Cut, view: View | None) -> bool:
    """Say whether a reset has happened that was not acknowledged yet: then what was acknowledged before is set aside."""
    return view is not None and bool(view.terms.resets) and not cut.noted("reset")


def check_no_damage(cut: Cut, store: Store) -> None:
    found = {problem.name for problem in oneshot.verify(store).problems}
    assert found <= {layout.manifest(number) for number in standing(cut, "torn", "dropped")}


def check_the_next_start(cut: Cut, store: Store, view: View | None) -> None:
    acknowledged = acknowledged_by(cut)
    newest = max(acknowledged, default=0)
    with Training(store) as training:
        restored = training.engine.resume()
        check_nothing_is_left_over(cut, store)
        if restored is None:
            assert not newest or is_reset_without_a_word(cut, view), acknowledged
        else:
            assert restored.skipped == () or (view and view.unreadable), restored.skipped
            assert training.is_at(restored.step)
            assert restored.generation >= newest, acknowledged
        saved = training.save(AFTERWARDS)
        taken = {*acknowledged, *(view.listing.summaries if view else ())}
        assert saved.number > max(taken, default=0)
    check_no_damage(cut, store)
    assert bits(oneshot.load(store)) == bits_at(AFTERWARDS)
    progress = read_progress(store)
    assert progress is not None
    assert progress.step == AFTERWARDS


def check_nothing_is_left_over(cut: Cut, store: Store) -> None:
    """Check that whatever a power cut left or brought back is swept: unfinished, temporary, named by nobody, or dead."""
    view = read(store)
    if not view.unreadable:
        named = {blob.name for summary in view.listing.summaries.values() for blob in summary.blobs}
        assert {entry.name for entry in store.list(layout.BLOBS)} == named
        assert set(view.listing.summaries) <= {*view.live, *view.pins}


def check_the_reset(cut: Cut, root: Path) -> None:
    """Check that a run that was reset lies whole in its new place after the next start, and nowhere in two."""
    homes = [*(root / "reset").iterdir()] if (root / "reset").exists() else []
    if not cut.noted("reset") and not any((home / layout.RUN).exists() for home in homes):
        return
    assert len(homes) == 1
    assert oneshot.verify(homes[0]).problems == ()
    assert [pin.state for pin in read(local(homes[0])).pins.values()] == ["held"]
    for step in (1, 2, 3):
        assert bits(oneshot.load(homes[0], which=step)) == bits_at(step)
