"""A kill before every single file operation of everything a run does to its root. A10, B6, B18

Each case runs in a forked child which dies, with no tidying up, before its file operation N, for all N. The child notes
each acknowledged generation outside the root, and the parent then holds the root to what was acknowledged.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import SystemClock
from milepost.engine import oneshot, relief
from milepost.engine.collecting import collect
from milepost.errors import ConflictError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins
from milepost.publish.hints import read_progress
from milepost.publish.view import View, read
from milepost.records import Summary
from milepost.store.posix import Posix
from milepost.testing.faults import KILLED, FaultyPosix, run_in_child
from milepost.testing.power import scratch
from tests.engine.training import Training, bits, local, state_at, without_git

# Python 3.12 and newer warn of a fork beside threads; the child here touches nothing a thread could hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory in memory where there is one: thousands of runs are written, and nothing here depends on the medium."""
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 16384)
    with scratch() as made:
        yield made


@dataclass(frozen=True)
class Scene:
    """Hold one run root, and beside it the note of what was acknowledged there."""

    place: Path

    @property
    def root(self) -> Path:
        return self.place / "run"

    def acknowledge(self, saved: Summary) -> None:
        with (self.place / "acknowledged").open("a") as file:
            file.write(f"{saved.number} {saved.step}\n")

    @property
    def acknowledged(self) -> dict[int, int]:
        """Return the step of each acknowledged generation by its number."""
        note = self.place / "acknowledged"
        lines = note.read_text().splitlines() if note.exists() else []
        return {int(number): int(step) for number, step in map(str.split, lines)}


Act = Callable[[Scene, Posix], object]


def save_and_note(scene: Scene, training: Training, *steps: int) -> None:
    for step in steps:
        scene.acknowledge(training.save(step))


def train(scene: Scene, posix: Posix, steps: tuple[int, ...], which: Any = "latest", **settings: Any) -> None:
    with Training(local(scene.root, posix), **settings) as training:
        training.engine.resume(which)
        save_and_note(scene, training, *steps)


def three_generations(scene: Scene) -> None:
    train(scene, Posix(), (1, 2, 3), keep=Keep(last=3))


def litter_of_killed_saves(scene: Scene) -> None:
    """Leave what kills leave: an unfinished blob, one that nobody names, temporary files, a retired generation's files."""
    three_generations(scene)
    blobs, manifests = scene.root / "blobs", scene.root / "generations"
    first = [manifests / "000001.json", *blobs.glob("000001-*")]
    dead = {path: path.read_bytes() for path in first}
    train(scene, Posix(), (4,), keep=Keep(last=2))
    assert not any(path.exists() for path in first)
    for path, data in dead.items():
        path.write_bytes(data)
    (blobs / f"000005-t2-{1:016x}.safetensors.part").write_bytes(b"unfinished")
    (blobs / f"000005-t2-{2:016x}.safetensors").write_bytes(b"unnamed")
    (blobs / f"LATEST-t2-{3:016x}.tmp").write_bytes(b"half")
    (blobs / f"000002-t0-{4:016x}.tmp").write_bytes(b"a pin")


def die(_: object) -> None:
    os._exit(KILLED)


def nothing(scene: Scene) -> None:
    """Start from an empty place."""


def pin_and_train(scene: Scene, posix: Posix) -> None:
    store = local(scene.root, posix)
    with Training(store) as training:
        training.engine.resume()
        pins.pin(store, 2)
        save_and_note(scene, training, 4, 5)
        assert sorted(read(store).live) == [2, 3, 4, 5]
        pins.unpin(store, 2)
        save_and_note(scene, training, 6)
        assert sorted(read(store).live) == [3, 5, 6]


def roll_back(scene: Scene, posix: Posix) -> None:
    scene.acknowledge(oneshot.rollback(local(scene.root, posix), 1))


def full_disk(scene: Scene, posix: Posix) -> None:
    assert isinstance(posix, SmallDisk)
    with Training(local(scene.root, posix), keep=Keep(last=3)) as training:
        training.engine.resume()
        save_and_note(scene, training, 4)
        posix.capacity_bytes = used_bytes(scene.root) + 4000
        save_and_note(scene, training, 5)
    # 5 was the trim: generation 4 again, without 2.
    assert sorted(path.stem for path in (scene.root / "generations").iterdir()) == ["000003", "000005", "000006"]


def flush_and_note(scene: Scene, training: Training, staged: int, live: int) -> None:
    """Flush the last of two safe points when training is somewhere else already."""
    for step in (staged - 1, staged):
        training.train_to(step)
        assert not training.engine.save_if_due(step)
    training.train_to(live)
    flushed = training.engine.flush_staged()
    assert flushed is not None
    assert flushed.step == staged
    scene.acknowledge(flushed)


def preempted(scene: Scene, posix: Posix) -> None:
    with Training(local(scene.root, posix), grace=1e-9) as training:
        training.engine.resume()
        flush_and_note(scene, training, 5, 7)
        save_and_note(scene, training, 7)


def preempted_on_a_full_disk(scene: Scene, posix: Posix) -> None:
    assert isinstance(posix, SmallDisk)
    with Training(local(scene.root, posix), keep=Keep(last=3), grace=1e-9) as training:
        training.engine.resume()
        posix.capacity_bytes = used_bytes(scene.root) + 4000
        flush_and_note(scene, training, 5, 7)


class SmallDisk(FaultyPosix):
    """Be a disk that takes no more than so many bytes below ``root``."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(at, die)
        self.root = root
        self.capacity_bytes: int | None = None

    def perform(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        full = name == "write" and self.capacity_bytes is not None
        if full and used_bytes(self.root) + len(args[1]) > (self.capacity_bytes or 0):
            return super().perform(name, no_space, *args)
        return super().perform(name, function, *args, **kwargs)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


CASES: dict[str, tuple[Callable[[Scene], object], Act]] = {
    "first claim and saves": (nothing, lambda scene, posix: train(scene, posix, (1, 2))),
    "claim, resume, save, retire": (three_generations, lambda scene, posix: train(scene, posix, (4, 5))),
    "sweep": (litter_of_killed_saves, lambda scene, posix: train(scene, posix, ())),
    "go back and save": (three_generations, lambda scene, posix: train(scene, posix, (9,), which=1)),
    "start anew and save": (three_generations, lambda scene, posix: train(scene, posix, (1, 2), which="never")),
    "rollback": (three_generations, roll_back),
    "pin and unpin": (three_generations, pin_and_train),
    "trim on a full disk": (three_generations, full_disk),
    "flush what is staged": (three_generations, preempted),
    "flush on a full disk": (three_generations, preempted_on_a_full_disk),
}


def every_scene(place: Path, prepare: Callable[[Scene], object]) -> Iterator[tuple[int, Scene]]:
    """Yield a number and a fresh copy of what ``prepare`` makes, again and again."""
    origin = Scene(place / "origin")
    origin.place.mkdir()
    prepare(origin)
    (origin.place / "acknowledged").unlink(missing_ok=True)
    for number in itertools.count():
        scene = Scene(place / str(number))
        shutil.copytree(origin.place, scene.place)
        yield number, scene
        shutil.rmtree(scene.place)


def was_killed(scene: Scene, number: int, act: Act) -> bool:
    """Run ``act`` in a child that dies before its file operation ``number``; return False if it ended before that."""
    status = run_in_child(lambda: act(scene, SmallDisk(scene.root, number)))
    assert status in (0, KILLED), f"the child failed before operation {number}; its traceback is on stderr"
    return status == KILLED


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_kill_anywhere_leaves_every_acknowledged_generation_and_the_next_start_goes_on(
    place: Path, case: tuple[Callable[[Scene], object], Act]
) -> None:
    prepare, act = case
    for number, scene in every_scene(place, prepare):
        killed = was_killed(scene, number, act)
        check_what_was_acknowledged(scene)
        check_progress(scene)
        check_the_next_start(scene)
        if not killed:
            break
    assert number > 30


def take_over(scene: Scene, posix: Posix) -> None:
    with Training(local(scene.root, posix), take_over=True) as training:
        training.engine.resume()
        save_and_note(scene, training, 4, 5)


def test_a_kill_anywhere_in_a_takeover_leaves_one_writer_and_all_that_either_was_told_is_saved(place: Path) -> None:
    for number, scene in every_scene(place, three_generations):
        with Training(scene.root) as stopped:
            stopped.engine.resume()
            killed = was_killed(scene, number, take_over)
            fenced = (scene.root / "terms/0003.json").exists()
            assert fenced or not scene.acknowledged
            if fenced:
                with pytest.raises(ConflictError):
                    stopped.save(6)
            else:
                scene.acknowledge(stopped.save(6))
        check_what_was_acknowledged(scene)
        check_the_next_start(scene)
        if not killed:
            break
    assert number > 30


def test_a_kill_anywhere_in_a_reset_leaves_the_run_whole_in_one_place_and_the_next_start_finishes_it(place: Path) -> None:
    def reset(scene: Scene, posix: Posix) -> None:
        oneshot.reset(local(scene.root, posix))

    seen = set()
    for number, scene in every_scene(place, three_generations):
        killed = was_killed(scene, number, reset)
        with Training(scene.root) as training:
            was_reset = training.engine.resume() is None
            check_nothing_is_left_over(scene.root)
            assert training.save(9).number == 4
        assert oneshot.verify(local(scene.root)).problems == ()
        homes = [*(scene.root / "reset").iterdir()] if was_reset else [scene.root]
        assert len(homes) == 1
        assert oneshot.verify(local(homes[0])).problems == ()
        for step in (1, 2, 3) if was_reset else (3,):
            assert bits(oneshot.load(homes[0], which=step)) == bits(state_at(step))
        seen.add(was_reset)
        if not killed:
            break
    assert seen == {False, True}


def gc(scene: Scene, posix: Posix = Posix()) -> None:  # noqa: B008 - it has no state
    collect(local(scene.root, posix), SystemClock(), Keep(last=1))


def test_a_kill_anywhere_in_a_gc_leaves_what_it_keeps_and_the_next_one_finishes_it(place: Path) -> None:
    def pinned_litter(scene: Scene) -> None:
        litter_of_killed_saves(scene)
        pins.pin(local(scene.root), 3)
        train(scene, Posix(), (5, 6), keep=Keep(last=2))

    for number, scene in every_scene(place, pinned_litter):
        killed = was_killed(scene, number, gc)
        check_what_was_acknowledged(scene)
        gc(scene)
        check_nothing_is_left_over(scene.root)
        steps = {number: summary.step for number, summary in read(local(scene.root)).live.items()}
        assert sorted(steps.values()) == [3, 6], "the pinned one and the newest"
        for kept, step in steps.items():
            assert bits(oneshot.load(local(scene.root), which=kept)) == bits(state_at(step))
        check_the_next_start(scene)
        if not killed:
            break
    assert number > 30


def torn_head(scene: Scene) -> None:
    three_generations(scene)
    (scene.root / layout.manifest(3)).write_bytes(b"torn")


def drop_the_torn_one(scene: Scene, posix: Posix) -> None:
    oneshot.drop(local(scene.root, posix), 3)


@pytest.mark.parametrize("act", [roll_back, drop_the_torn_one])
def test_a_kill_anywhere_while_an_operator_mends_a_torn_manifest_leaves_every_other_generation(place: Path, act: Act) -> None:
    for number, scene in every_scene(place, torn_head):
        killed = was_killed(scene, number, act)
        store = local(scene.root)
        assert {problem.name for problem in oneshot.verify(store).problems} <= {layout.manifest(3)}
        for live, summary in read(store).live.items():
            assert bits(oneshot.load(store, which=live)) == bits(state_at(summary.step))
        with Training(scene.root) as training:
            restored = training.engine.resume()
            assert restored is not None
            assert restored.step in ({1, 2} if act is roll_back else {2})
            assert training.is_at(restored.step)
            assert training.save(9).number > 3, "the torn one's number is never used again"
        assert bits(oneshot.load(store)) == bits(state_at(9))
        if not killed:
            break
    assert number > 20
    assert restored.step == (1 if act is roll_back else 2)


def check_what_was_acknowledged(scene: Scene) -> View | None:
    store = local(scene.root)
    try:
        view = read(store)
    except NotFoundError:
        assert not scene.acknowledged
        return None
    report = oneshot.verify(store)
    assert report.problems == ()
    for number, summary in view.live.items():
        # No half generation is ever visible: whatever is live is whole, acknowledged or not.
        assert bits(oneshot.load(store, which=number)) == bits(state_at(summary.step)), number
    for number, step in scene.acknowledged.items():
        assert view.head is not None
        repeated = {live.trim_of: live for live in view.live.values()}
        kept = view.live.get(number) or repeated.get(number)
        if kept is None:
            # Retired, then; and only by a manifest that was published after it, and that does not keep it.
            assert number < view.head.number
            assert number not in view.head.keep
            assert number < max(scene.acknowledged), "the newest acknowledged generation is never retired"
        else:
            assert kept.step == step
    return view


def check_progress(scene: Scene) -> None:
    if scene.acknowledged:
        progress = read_progress(local(scene.root))
        assert progress is not None
        assert progress.step >= [*scene.acknowledged.values()][-1]


def check_the_next_start(scene: Scene) -> None:
    store = local(scene.root)
    with Training(store) as training:
        restored = training.engine.resume()
        check_nothing_is_left_over(scene.root)
        newest = max(scene.acknowledged, default=0)
        if restored is None:
            assert newest == 0
        else:
            assert restored.generation >= newest
            assert restored.skipped == ()
            assert training.is_at(restored.step)
        before = set(read(store).listing.summaries)
        saved = training.save(9)
        assert saved.number > max(before, default=0)
    assert oneshot.verify(store).problems == ()
    assert bits(oneshot.load(store)) == bits(state_at(9))


def check_nothing_is_left_over(root: Path) -> None:
    """Check that every file which a kill may leave is gone: unfinished, temporary, named by no manifest, or dead."""
    view = read(local(root))
    named = {blob.name for summary in view.listing.summaries.values() for blob in summary.blobs}
    there = {path.relative_to(root).as_posix() for path in (root / "blobs").iterdir()}
    assert there == named
    assert set(view.listing.summaries) <= {*view.live, *view.pins}
    unfinished = {path.relative_to(root) for path in root.rglob("*") if path.suffix in (".tmp", ".part")}
    # What a reset moved aside is swept by whoever claims it there.
    assert not [path for path in unfinished if path.parts[0] != "reset"]
