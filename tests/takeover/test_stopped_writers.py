"""A writer that is stopped (SIGSTOP) anywhere, and woken after another has taken over, harms nothing. A9, A13, B6

The first writer stops itself before its file operation N, for all N, in a process of its own. While it stands there a second
process claims the root with ``take_over``, publishes until nothing of the first is kept, retires, and rolls back. Then the
first goes on: it finds the fence and stops, or, if it had not claimed yet when it was stopped, it claims after the second.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from milepost.engine import relief
from milepost.publish.view import read
from milepost.store.process import host_name
from milepost.testing.faults import run_in_child
from milepost.testing.stopping import Child, Point, at_operation
from tests.engine.training import Training, local, without_git
from tests.takeover.scene import (
    ACTS,
    FENCED,
    Act,
    Prepare,
    Scene,
    Stoppable,
    check_a_third_start_goes_on,
    check_how_the_first_ended,
    check_refused_while_stopped,
    check_the_run_set_aside_is_whole,
    contents,
    memory_place,
    reset_and_start_anew,
    save_and_retire,
    take_over,
    three_generations,
    until_fenced,
)

# Python 3.12 and newer warn of a fork beside threads; the child here touches nothing a thread could hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 16384)
    with memory_place(tmp_path) as made:
        yield made


def stop(scene: Scene, act: Act, here: Callable[[Point], bool]) -> Child:
    """Run ``act`` in a process of its own, which stops itself there."""
    return Child(lambda: until_fenced(scene, lambda: act(scene, Stoppable(scene, here))))


def scenes(place: Path, prepare: Prepare, act: Act, meanwhile: Callable[[Scene], object]) -> Iterator[Scene]:
    """Yield what is left after the first was stopped before its operation N, ``meanwhile`` ran, and it went on: for all N."""
    origin = Scene(place / "origin")
    origin.place.mkdir()
    prepare(origin)
    for number in itertools.count():
        scene = Scene(place / str(number))
        shutil.copytree(origin.place, scene.place)
        with stop(scene, act, lambda point, number=number: point.number == number) as first:
            if not first.stops():
                assert first.ends() == 0
                return
            try:
                check_refused_while_stopped(scene, first.pid)
                meanwhile(scene)
                assert first.ends() == 0, "the first failed in another way than it may; its traceback is on stderr"
                yield scene
            except BaseException as error:
                error.add_note(f"the first was stopped before {scene.point}, and ended {scene.notes('ended')}")
                raise
        shutil.rmtree(scene.place)


def in_a_process(action: Callable[[], object]) -> None:
    assert run_in_child(action) == 0, "the second writer failed; its traceback is on stderr"


@pytest.mark.parametrize("name", list(ACTS))
def test_a_writer_that_is_stopped_anywhere_and_woken_after_a_takeover_is_fenced_and_harms_nothing(place: Path, name: str) -> None:
    before: dict[int, int] = {}
    endings: list[str] = []

    def meanwhile(scene: Scene) -> None:
        in_a_process(lambda: take_over(scene))
        before.clear()
        before.update(contents(scene.root))

    for scene in scenes(place, *ACTS[name], meanwhile):
        check_how_the_first_ended(scene, before)
        check_a_third_start_goes_on(scene)
        endings += scene.notes("ended")
    assert endings.count(FENCED) >= 20
    # Stopped before its fence it has claimed nothing yet: it does so after the second, and goes on from what that left.
    assert (len(set(endings)) > 1) == ("claim" in name or "rollback" in name)


def test_a_writer_that_is_stopped_anywhere_and_woken_after_a_reset_touches_neither_run(place: Path) -> None:
    prepare, act = ACTS["a save that retires"]
    before: dict[Path, dict[int, int]] = {}

    def meanwhile(scene: Scene) -> None:
        in_a_process(lambda: reset_and_start_anew(scene))
        before.clear()
        before.update({home: contents(home) for home in (scene.root, *(scene.root / "reset").iterdir())})

    tried = 0
    for scene in scenes(place, prepare, act, meanwhile):
        assert contents(scene.root) == before.pop(scene.root)
        check_the_run_set_aside_is_whole(scene, *before.values())
        check_a_third_start_goes_on(scene)
        tried += 1
    assert tried >= 20


# --- named points, and the program ----------------------------------------------------------------------------------------

SAVE_POINTS = {
    "the step is noted": ("replace", "*/progress.json"),
    "the blob is begun": ("open_new", "*/blobs/*.safetensors.part"),
    "the blob is written": ("write", "*/blobs/*.safetensors.part"),
    "the blob is synced": ("fsync", "*/blobs/*.safetensors.part"),
    "the blob gets its name": ("replace", "*/blobs/*.safetensors"),
    "the manifest is written": ("write", "*/blobs/000004.json-*.tmp"),
    "the manifest gets its name: the commit": ("link", "*/generations/000004.json"),
    "the manifest's name is durable": ("sync_directory", "*/generations"),
    "LATEST is moved": ("replace", "*/LATEST"),
    "a retired manifest is deleted": ("unlink", "*/generations/000002.json"),
    "the deletion is durable": ("sync_directory", "*/generations", 2),
    "a retired blob is deleted": ("unlink", "*/blobs/000001-*.safetensors"),
    "the event is written": ("open_append", "*/events/0002.jsonl"),
}
BEFORE_THE_COMMIT = 7
VERBS = {"rollback": ["2"], "reset": []}


def milepost(verb: str, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from milepost.cli.main import main; main()", verb, str(root), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("point", "verb"), [*zip(SAVE_POINTS, itertools.cycle(VERBS), strict=False)])
def test_the_program_takes_over_from_a_writer_that_is_stopped_before(place: Path, point: str, verb: str) -> None:
    scene = Scene(place)
    three_generations(scene)
    with stop(scene, save_and_retire, at_operation(*SAVE_POINTS[point])) as first:
        assert first.stops()
        committed = list(SAVE_POINTS).index(point) >= BEFORE_THE_COMMIT
        assert (4 in read(local(scene.root)).live) == committed
        target = ["3"] if committed else VERBS[verb]
        arguments = [*(target if verb == "rollback" else []), "--take-over"]
        taken = milepost(verb, scene.root, *arguments)
        assert taken.returncode == 0, taken.stderr
        homes = [scene.root] if verb == "rollback" else [*(scene.root / "reset").iterdir()]
        before = contents(homes[0])
        assert first.ends() == 0
    assert scene.notes("ended") == [FENCED]
    assert contents(homes[0]) == before
    if verb == "reset":
        assert contents(scene.root) == {}
        with Training(local(scene.root)) as third:
            assert third.engine.resume() is None
            assert third.save(9).number > 3 + committed
    else:
        check_a_third_start_goes_on(scene)


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_program_refuses_to_touch_the_root_of_a_stopped_writer_and_names_it(place: Path, verb: str) -> None:
    scene = Scene(place)
    three_generations(scene)
    with stop(scene, save_and_retire, at_operation("link", "*/generations/000004.json")) as first:
        assert first.stops()
        before = {path: path.read_bytes() for path in scene.root.rglob("*") if path.is_file()}
        refused = milepost(verb, scene.root, *VERBS[verb], "--json")
        assert refused.returncode == 11
        error = json.loads(refused.stderr)
        facts = error["facts"]
        assert (error["kind"], facts["pid"], facts["host"]) == ("held", str(first.pid), host_name())
        assert int(facts["age_s"]) in range(300)
        assert "--take-over" in error["hint"]
        assert {path: path.read_bytes() for path in scene.root.rglob("*") if path.is_file()} == before
        assert first.ends() == 0
    assert scene.notes("ended") == ["done"]
