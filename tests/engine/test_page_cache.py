"""What a run does to the page cache: nothing that lasts. DESIGN 9, B4"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from milepost import CheckpointEngine, Keep
from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.lifecycle.scrub import Scrub
from tests.engine.training import local
from tests.store.pages import keeps_pages, resident

NOISE = np.random.default_rng(0).random(600_000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with two generations of some megabytes."""
    if not keeps_pages(tmp_path / "probe"):
        pytest.skip("the temporary directory is in memory")
    state = {"policy": {"w": NOISE.copy(), "b": NOISE[:200_000].copy()}}
    with CheckpointEngine(tmp_path / "run", state=state, keep=Keep(last=2)) as engine:
        for step in (1, 2):
            state["policy"]["w"] += 1
            engine.save(step)
            engine.wait()
    return tmp_path / "run"


def large(root: Path) -> list[Path]:
    return [path for path in (root / "blobs").iterdir() if path.stat().st_size > 1 << 20]


def resume(root: Path) -> None:
    state = {"policy": {"w": NOISE.copy(), "b": NOISE[:200_000].copy()}}
    with CheckpointEngine(root, state=state) as engine:
        assert engine.resume() is not None
    assert bool((state["policy"]["w"] == NOISE + 1 + 1).all())


READERS: dict[str, Callable[[Path], object]] = {
    "resume": resume,
    "load": oneshot.load,
    "verify": oneshot.verify,
    "scrub": lambda root: Scrub(local(root), SystemClock()).run(lambda _: None),
}


def test_a_save_leaves_no_page_of_its_blobs(root: Path) -> None:
    assert len(large(root)) == 3, "one of them is shared"
    assert [resident(path) for path in large(root)] == [0, 0, 0]


@pytest.mark.parametrize("reader", READERS)
def test_what_reads_a_run_once_leaves_no_page_of_it(root: Path, reader: str) -> None:
    READERS[reader](root)
    assert [resident(path) for path in large(root)] == [0, 0, 0]


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"scrub"}))
def test_what_was_in_memory_before_it_was_read_stays_there(root: Path, reader: str) -> None:
    for path in large(root):
        path.read_bytes()
    READERS[reader](root)
    assert all(resident(path) >= path.stat().st_size for path in large(root))
