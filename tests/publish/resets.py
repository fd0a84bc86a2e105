"""Reset runs, and look at what is left: for the tests of rule 26."""

from __future__ import annotations

import pytest

from milepost.lifecycle.verify import verify
from milepost.publish import layout, quarantine
from milepost.publish.pins import pin
from milepost.publish.reset import reset
from milepost.publish.view import View, read
from milepost.records import Reset
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from tests.publish.world import WHO, World, Writer

IN_MEMORY = pytest.mark.parametrize("world", ["memory"], indirect=True)
"""For the long tables; the shorter ones around them run on files, too."""


def old_root(world: World, run_id: str) -> Store:
    """Return the old run, as the run root that it still is."""
    if world.kind == "local":
        return LocalStore(world.path / "reset" / run_id, world.clock())
    other, prefix = MemoryStore(), f"{layout.ASIDE}{run_id}/"
    for name in world.names(prefix):
        other.create(name.removeprefix(prefix), world.plain().read(name))
    return other


def three_generations(world: World) -> Writer:
    """Let the old run publish 1, 2 and 3, of which 2 and 3 are live, 2 is pinned and 3 is marked."""
    a = world.open()
    for value in (1, 2, 3):
        a.save(value)
    pin(world.plain(), 2)
    quarantine.mark(world.plain(), world.clock(), run_id=a.session.run_id, term=1, number=3, kind="damaged", reason="seen")
    return a


def do_reset(world: World, store: Store | None = None) -> Reset:
    return reset(store or world.plain(), world.clock(), WHO)


def new_names(world: World) -> list[str]:
    """Return what lies in the root beside what was set aside."""
    return [name for name in world.names() if not name.startswith(layout.ASIDE) and not name.endswith(".lock")]


def check_aside(world: World, run_id: str, numbers: list[int]) -> View:
    """Check that the old run is whole where it was put, and that nothing of another run is there."""
    old = old_root(world, run_id)
    view = read(old)
    assert (view.run_id, list(view.live), view.undecided) == (run_id, numbers, False)
    assert verify(old).problems == ()
    assert {summary.run_id for summary in view.listing.summaries.values()} <= {run_id}
    return view


def check_new_run(world: World, old_id: str, numbers: list[int]) -> None:
    """Check that the next claimers go on with the new run undisturbed, and that the old one is whole."""
    b = world.open()
    assert b.session.run_id != old_id
    assert b.head == 0 or world.view().listing.summaries[b.head].run_id == b.session.run_id
    saved = [b.save(value) for value in (7, 8)]
    world.check(*saved)
    c = world.open()
    assert (c.session.run_id, c.head) == (b.session.run_id, saved[-1].number)
    world.check(*saved)
    check_aside(world, old_id, numbers)
    assert not [name for name in new_names(world) if (layout.blob_term(name) or c.term) < 2]
