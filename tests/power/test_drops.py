"""Leave out one sync of the local store, or one that the protocol asks for: the replay shows what it is there for. A10

Where it shows nothing, the reason stands beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost
from tests.power.acts import CASES
from tests.power.drops import SITES, Dropping
from tests.power.runs import replay_run

SOURCES = Path(milepost.__file__).parent

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

LOCAL_STORE = {
    ("fsync", "_write_whole"): ("first claim and saves", "-> run/terms/"),
    ("sync_directory", "_write_whole"): ("first claim and saves", "-> run/terms/0001.from.json"),
    ("fsync", "commit"): ("first claim and saves", "-> run/generations/"),
    ("sync_directory", "commit"): ("first claim and saves", "-> run/generations/"),
    ("sync_directory", "keep"): ("first claim and saves", "note acknowledged"),
    ("sync_directory", "sync"): ("pin and unpin", "note unpinned"),
}
"""Each place that syncs, by the call and its function: the case that shows it, and after which record the power is cut."""

PROTOCOL = {
    # V14: what nobody synced is adopted, and what it drops is deleted; then it is gone, and so is all that it dropped.
    "_list": ("adoption", "unlink run/generations"),
    "unpin": ("pin and unpin", "note unpinned"),
    "clear": ("quarantine", "note cleared"),
    "drop_unreadable": ("drop an unreadable manifest", "note dropped"),
    "_make_names_durable": ("reading", "note acknowledged"),
}
"""Each function that asks the store for a sync, and what shows it."""

HARMLESS = {
    # `create` has made the names of terms/ durable itself. These are for a record that another process made, and they show in
    # the model of tests/model only (V14b): here a name that is taken leads to another term, whose record syncs the folder.
    "_fence": "takeover",
    "_settle": "claim, resume, save, retire",
    # A retired manifest that comes back is dead by what the head keeps (rule 2), with its blobs or without; it is swept.
    "retire": "claim, resume, save, retire",
    "sweep": "sweep",
    # A moved name is in one of its two places, and whoever claims goes on until nothing is left in the old one (rule 26b).
    "_move": "reset",
    # A pin of the old run counts for nothing in the new one (rule 26).
    "_pin_aside": "reset",
}
NOT_RECORDED = {
    "_seal": "two claims at once",
    "_run_of": "two first claims at once",
    "_create": "an answer that was lost",
    "_adopt_own": "an answer that was lost",
    "set_aside_foreign": "a file of somebody else's; tests/publish/test_pointer.py cuts the power there",
}


def callers_of(files: Iterator[Path], *methods: str) -> set[tuple[str, str]]:
    """Return which functions call one of these methods: (method, function)."""
    return {
        (call.func.attr, function.name)
        for path in files
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in methods
    }


def test_every_place_that_syncs_is_on_these_lists() -> None:
    files = (SOURCES / "store" / name for name in ("local.py", "blob_file.py", "blob_bytes.py", "directories.py"))
    assert callers_of(files, "fsync", "sync_directory") == LOCAL_STORE.keys() == set(SITES)
    files = (path for where in ("publish", "engine") for path in (SOURCES / where).glob("*.py") if path.name != "signed.py")
    asking = {name for _, name in callers_of(files, "sync")}
    assert asking == PROTOCOL.keys() | HARMLESS.keys() | NOT_RECORDED.keys()


@pytest.mark.parametrize("site", LOCAL_STORE, ids=" in ".join)
def test_a_sync_that_the_local_store_leaves_out_loses_something(site: tuple[str, str]) -> None:
    case, after = LOCAL_STORE[site]
    dropping = Dropping(*site, inner=CASES[case].inner())
    tally = replay_run(case, inner=dropping, limit=200, lost_at_most=1, only=lambda cut: after in cut.after)
    assert dropping.dropped
    assert tally.lost, f"{tally.cuts} cuts, and nothing was missed"


@pytest.mark.parametrize("asking", PROTOCOL)
def test_a_sync_that_the_protocol_leaves_out_loses_something(asking: str) -> None:
    case, after = PROTOCOL[asking]
    dropping = Dropping("sync_directory", "sync", asking, CASES[case].inner())
    tally = replay_run(case, inner=dropping, limit=200, lost_at_most=1, only=lambda cut: after in cut.after)
    assert dropping.dropped
    assert tally.lost, f"{tally.cuts} cuts, and nothing was missed"


@pytest.mark.parametrize("asking", HARMLESS)
def test_a_sync_that_is_there_for_prudence_loses_nothing_if_it_is_left_out(asking: str) -> None:
    case = HARMLESS[asking]
    dropping = Dropping("sync_directory", "sync", asking, CASES[case].inner())
    tally = replay_run(case, inner=dropping, limit=15)
    assert dropping.dropped
    assert tally.lost == 0, tally.failures[0]
