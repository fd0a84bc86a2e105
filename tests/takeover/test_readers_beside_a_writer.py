"""Readers that load, list and verify while generations retire as fast as they can neither fail nor see a mix. B8, rules 19, 20

The writer keeps only one generation, so that whatever a reader has found is about to be deleted. Every part of the state
carries its step: parts of two generations in one answer would be seen at once. Readers are counted, not timed; the writer goes
on until the last of them has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import milepost
from milepost.cli.main import main
from milepost.errors import NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.testing.stopping import Child
from tests.engine.training import Training, bits, local, state_at, without_git
from tests.takeover.scene import memory_place

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

TURNS = int(os.environ.get("MILEPOST_READER_TURNS", "60"))
READERS = 3
RETIRED_UNDER_THEM = 5


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    without_git(monkeypatch)
    with memory_place(tmp_path) as made:
        yield made


def a_run(where: Path | Store) -> None:
    with Training(where, keep=Keep(last=1)) as training:
        training.save(0)


def save_on(where: Path | Store, is_over: Callable[[], bool]) -> None:
    """Save and retire, over and over."""
    with Training(where, keep=Keep(last=1)) as training:
        training.engine.resume()
        step = 0
        while not is_over():
            step += 1
            training.save(step)


def whole(tree: Any, parts: tuple[str, ...] | None = None) -> int:
    """Return the step of what was loaded, having compared every bit of it with what training had at that step."""
    step = int(tree["counters"]["step"])
    wanted = state_at(step)
    assert bits(tree) == bits({name: wanted[name] for name in parts or wanted}), f"a mix at step {step}"
    return step


def read_on(root: Path | Store, turns: int) -> list[int]:
    """Read in every way there is, so many times at least, and until enough has retired meanwhile; return the steps seen."""
    seen: list[int] = []
    gone = 0
    store = root if isinstance(root, Store) else local(root)
    for turn in range(100 * turns):
        if turn >= turns and len(set(seen)) > RETIRED_UNDER_THEM:
            break
        seen.append(whole(milepost.load(root)))
        parts = ("policy", "counters")
        seen.append(whole(milepost.load(root, parts=parts), parts))
        live = max(read(store).live)
        try:
            whole(milepost.load(root, which=live))
        except NotFoundError:
            gone += 1  # it was live a moment ago; to say that it is gone is the one other right answer
        report = milepost.verify(root)
        assert report.problems == ()
        assert {each.state for each in report.generations} <= {"valid", "retired"}, report
        if isinstance(root, Path):
            listed = CliRunner().invoke(main, ["ls", str(root)])
            assert listed.exit_code == 0, listed.output
    assert seen == sorted(seen), "a reader was sent back to an older generation"
    return seen


def test_readers_in_other_processes_never_fail_and_never_see_a_mix(place: Path) -> None:
    root, over = place / "run", place / "over"
    a_run(root)

    def reader(number: int) -> Child:
        return Child(lambda: (place / f"seen-{number}").write_text(str(len(set(read_on(root, TURNS))))))

    with ExitStack() as children:
        writer = children.enter_context(Child(lambda: save_on(root, over.exists)))
        readers = [children.enter_context(reader(number)) for number in range(READERS)]
        assert [each.ends() for each in readers] == [0] * READERS, "a reader failed; its traceback is on stderr"
        over.touch()
        assert writer.ends() == 0
    seen = [int((place / f"seen-{number}").read_text()) for number in range(READERS)]
    assert min(seen) > RETIRED_UNDER_THEM


def test_readers_in_other_threads_never_fail_and_never_see_a_mix_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_git(monkeypatch)
    name, over = str(tmp_path), threading.Event()
    a_run(MemoryStore(name))
    with ThreadPoolExecutor(READERS + 1) as pool:
        writing = pool.submit(save_on, MemoryStore(name), over.is_set)
        try:
            seen = list(pool.map(lambda _: read_on(MemoryStore(name), TURNS), range(READERS)))
        finally:
            over.set()
        writing.result()
    assert min(len(set(steps)) for steps in seen) > RETIRED_UNDER_THEM
