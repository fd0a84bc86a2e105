"""What a command leaves in the folder of its attempt is the command's to choose, and what is progress is not its word alone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import milepost
from milepost.clock import SystemClock
from milepost.engine.beats import Beats
from milepost.publish.view import View, read
from milepost.store.local import LocalStore
from milepost.supervise.attempt import forget
from milepost.supervise.beating import stopped_behind
from milepost.supervise.roots import newest_of
from tests.supervise.attempts import PRELUDE, order_of, over, started, until
from tests.supervise.runs import LOOP, QUICK, ran

FOLDER = PRELUDE + "folder = Path(os.environ['MILEPOST_SUPERVISED'])\n"
LATER = "9999-01-01T00:00:00Z"


@pytest.mark.parametrize("name", ["beat-1-a", "failure-1.json", "stopped-1.json", "elastic.json"])
def test_a_file_that_never_ends_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    run = ran(tmp_path, FOLDER + f"os.mkfifo(folder / {name!r}); os._exit(3)", *QUICK, "--max-failures", "0")
    assert run.process.returncode == 3, run.said()


def test_of_a_link_in_the_place_of_a_folder_only_the_link_is_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("of somebody else")
    script = "folder.rmdir(); folder.parent.rmdir(); folder.parent.symlink_to('precious'); os._exit(3)"
    ran(tmp_path, FOLDER + script.replace("'precious'", repr(str(precious))), *QUICK, "--max-failures", "0")
    assert (precious / "file").exists()
    assert not list(tmp_path.glob("milepost-run-*"))
    (tmp_path / "attempt-1").symlink_to(precious)
    forget(tmp_path / "attempt-1")
    assert [*precious.iterdir()] == [precious / "file"]


def test_a_folder_too_deep_to_be_removed_changes_no_exit_code(tmp_path: Path) -> None:
    script = "os.chdir(folder)\nfor _ in range(2000):\n    os.mkdir('deep'), os.chdir('deep')\nos._exit(3)"
    run = ran(tmp_path, FOLDER + script, *QUICK, "--max-failures", "0")
    subprocess.run(["rm", "-rf", *tmp_path.glob("milepost-run-*")], check=True)  # pytest cannot remove it either
    assert run.process.returncode == 3, run.said()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with milepost.CheckpointEngine(tmp_path / "mine", state={"policy": {"weights": np.zeros(4)}}) as engine:
        engine.resume()
        engine.save(10)
        engine.save(20)
    return tmp_path / "mine"


def seen(root: Path, **changes: object) -> View:
    """Return what stands in the root, as if its newest generation were another."""
    view = read(LocalStore(str(root), SystemClock()))
    assert view.head is not None
    head = dataclasses.replace(view.head, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(view, head=head, live={**view.live, head.number: head})


def beats(view: View, **changes: object) -> Beats:
    said = Beats(os.getpid(), "root", view.run_id, 9, 20, "training", 0, 1, 2)
    return dataclasses.replace(said, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("began", ["", LATER], ids=["of its claim", "of its word"])
def test_progress_is_what_the_next_start_goes_on_from_and_of_another_step(root: Path, began: str) -> None:
    view = seen(root)
    assert newest_of(beats(view), view, began).is_new
    # An essential-only stop is passed over by the next start, and one that saves on its way into a crash gets nowhere.
    for changes in ({"complete": False}, {"trim_of": 1}, {"step": 10}):
        view = seen(root, **changes)
        old = {number: dataclasses.replace(each, term=0) if number == 1 else each for number, each in view.live.items()}
        view = dataclasses.replace(view, live=old)
        assert not newest_of(beats(view), view, began).is_new, changes


def test_what_was_published_and_is_retired_was_progress(root: Path) -> None:
    view = seen(root)
    assert newest_of(beats(view, generation=1, resumed=0), dataclasses.replace(view, live={2: view.live[2]}), LATER).is_new
    assert not newest_of(beats(view, generation=0), view, LATER).is_new


def test_what_was_published_is_known_though_somebody_clears_the_folder_away(tmp_path: Path) -> None:
    script = LOOP.replace(
        'at(counters["step"])',
        """
        if counters["step"] == 15:
            while not Path("seen").exists(): pass
            import shutil
            shutil.rmtree(os.path.dirname(os.environ["MILEPOST_SUPERVISED"]))
            os._exit(9)""",
    )
    with started(order_of(tmp_path, script.removeprefix(PRELUDE))) as attempt:
        until(lambda: any(each.generation for each in attempt.beats.values()), attempt.poll)
        (tmp_path / "seen").touch()
        end = over(attempt)
    assert (end.exit_code, end.published, end.step) == (9, True, 15)


@pytest.mark.parametrize(
    ("listened", "left", "is_so"),
    [("7", "7", True), ("7 8", "7 8", True), ("7 8", "8", False), ("1 8", "8", False), ("7", "", False), ("1", "1", False)],
)
def test_all_that_trained_has_left_behind_what_was_started(tmp_path: Path, listened: str, left: str, is_so: bool) -> None:
    for name, pids in (("listening", listened), ("stopped", left)):
        for pid in pids.split():
            (tmp_path / f"{name}-{pid}.json").touch()
    assert stopped_behind(tmp_path, 1) is is_so
