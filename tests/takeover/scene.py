"""One run root, a writer that stops itself in the middle of something, and another that takes over meanwhile.

All of them are real processes. Each notes what it was told is saved in a file beside the root, so that nothing the root
says of itself has to be believed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from milepost.engine import oneshot
from milepost.errors import ConflictError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.records import Summary
from milepost.store.base import Store
from milepost.testing.stopping import Point, StopAt
from tests.engine.training import Training, bits, local, state_at

FENCED = "fenced"
DONE = "done"
GONE = "no-such-generation"


@dataclass(frozen=True)
class Ack:
    """Be one generation that a process was told is saved."""

    number: int
    step: int
    term: int


@dataclass(frozen=True)
class Scene:
    """Hold the root and what lies beside it."""

    place: Path

    @property
    def root(self) -> Path:
        return self.place / "run"

    def note(self, who: str, line: str) -> None:
        with (self.place / who).open("a") as file:
            file.write(line + "\n")

    def notes(self, who: str) -> list[str]:
        path = self.place / who
        return path.read_text().splitlines() if path.exists() else []

    def acknowledge(self, who: str, saved: Summary) -> None:
        self.note(who, f"{saved.number} {saved.step} {saved.term}")

    def acknowledged(self, who: str) -> list[Ack]:
        return [Ack(*map(int, line.split())) for line in self.notes(who)]

    @property
    def point(self) -> str:
        """Return where the first writer was stopped, for a failure to be read."""
        return self.notes("stopped")[-1] if self.notes("stopped") else "not stopped"


@contextmanager
def memory_place(tmp_path: Path) -> Iterator[Path]:
    """Give a directory in memory where there is one: hundreds of runs are written, and nothing here depends on the medium."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="milepost-takeover-", dir=memory))
    try:
        yield made
    finally:
        shutil.rmtree(made)


class Stoppable(StopAt):
    """Stop at a point of the region which the act has armed, and be a disk that takes no more than it is said to."""

    def __init__(self, scene: Scene, here: Callable[[Point], bool]) -> None:
        super().__init__(self._is_here, lambda point: scene.note("stopped", f"{self._seen - 1} {point.operation} {point.path}"))
        self.armed = True
        self.capacity_bytes: int | None = None
        self._root = scene.root
        self._wanted = here
        self._seen = 0

    def _is_here(self, point: Point) -> bool:
        if not self.armed:
            return False
        self._seen += 1
        return self._wanted(Point(self._seen - 1, point.operation, point.path))

    def perform(self, name: str, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        if name == "write" and self.capacity_bytes is not None:
            data = args[1]
            assert isinstance(data, memoryview)
            if used_bytes(self._root) + len(data) > self.capacity_bytes:
                return super().perform(name, no_space, *args)
        return super().perform(name, function, *args, **kwargs)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


# --- what the first writer is about ---------------------------------------------------------------------------------------


def save_on(scene: Scene, training: Training, *steps: int) -> None:
    for step in steps:
        scene.acknowledge("first", training.save(step))


def until_fenced(scene: Scene, act: Callable[[], object]) -> None:
    """Run ``act`` to its end, or until another writer is found to have taken over; note which it was.

    A rollback that was stopped before its claim claims after the second, and finds its target retired.
    """
    try:
        act()
    except (ConflictError, NotFoundError) as error:
        scene.note("ended", error.kind)
    else:
        scene.note("ended", DONE)


def go_on_for_ever(scene: Scene, training: Training) -> None:
    """Save twice more, as a loop that knows of nothing does; once refused, it is refused for good."""
    try:
        save_on(scene, training, 5, 6)
    except ConflictError as error:
        try:
            training.save(7)
        except ConflictError as again:
            assert again is error  # noqa: PT017
            raise
        raise AssertionError("a fenced writer saved once more") from error


def save_and_retire(scene: Scene, posix: Stoppable) -> None:
    posix.armed = False
    with Training(local(scene.root, posix), keep=Keep(last=2)) as training:
        training.engine.resume()
        posix.armed = True
        save_on(scene, training, 4)
        posix.armed = False
        go_on_for_ever(scene, training)


def claim_and_sweep(scene: Scene, posix: Stoppable) -> None:
    with Training(local(scene.root, posix), keep=Keep(last=2)) as training:
        posix.armed = False
        training.engine.resume()
        save_on(scene, training, 4)
        go_on_for_ever(scene, training)


def save_on_a_full_disk(scene: Scene, posix: Stoppable) -> None:
    posix.armed = False
    with Training(local(scene.root, posix), keep=Keep(last=3)) as training:
        training.engine.resume()
        save_on(scene, training, 3)
        posix.armed, posix.capacity_bytes = True, used_bytes(scene.root) + 1000
        save_on(scene, training, 4)
        posix.armed, posix.capacity_bytes = False, None
        go_on_for_ever(scene, training)


def roll_back(scene: Scene, posix: Stoppable) -> None:
    scene.acknowledge("first", oneshot.rollback(local(scene.root, posix), 1))


# --- what lies there before -----------------------------------------------------------------------------------------------


def nothing(scene: Scene) -> None:
    """Start from an empty place."""


def three_generations(scene: Scene) -> None:
    with Training(local(scene.root), keep=Keep(last=3)) as training:
        for step in (1, 2, 3):
            training.save(step)


def litter_of_killed_saves(scene: Scene) -> None:
    """Leave a retired generation whose deletion was never begun, and unfinished files."""
    three_generations(scene)
    blobs, manifests = scene.root / "blobs", scene.root / "generations"
    dead = {path: path.read_bytes() for path in (manifests / "000001.json", *blobs.glob("000001-*"))}
    with Training(local(scene.root), keep=Keep(last=2)) as training:
        training.engine.resume()
        training.save(4)
    for path, data in dead.items():
        path.write_bytes(data)
    (blobs / f"000005-t2-{1:016x}.safetensors.part").write_bytes(b"unfinished")
    (blobs / f"LATEST-t2-{3:016x}.tmp").write_bytes(b"half")


# --- what the second does meanwhile ---------------------------------------------------------------------------------------


def take_over(scene: Scene) -> None:
    """Claim the root, publish until nothing of the first is kept, and roll back."""
    with Training(local(scene.root), keep=Keep(last=2), take_over=True) as second:
        second.engine.resume()
        for step in (11, 12, 13):
            scene.acknowledge("second", second.save(step))
    before = max(read(local(scene.root)).live) - 1
    scene.acknowledge("second", oneshot.rollback(local(scene.root), before, take_over=True))


def reset_and_start_anew(scene: Scene) -> None:
    """Set the run aside, and train another one in its place."""
    oneshot.reset(local(scene.root), take_over=True)
    with Training(local(scene.root), keep=Keep(last=1), take_over=True) as second:
        assert second.engine.resume() is None
        for step in (11, 12):
            scene.acknowledge("second", second.save(step))


# --- what must hold -------------------------------------------------------------------------------------------------------


def check_refused_while_stopped(scene: Scene, pid: int) -> None:
    """Check that who does not insist is refused and told who is there, unless the first has no lock yet, or none any more."""
    try:
        with local(scene.root).guard(wait_s=0.0, take_over=False):
            return
    except ConflictError as error:
        refusal = error
    named = {str(refusal.facts.get("pid")), *str(refusal.facts.get("held_by")).split()}
    assert (refusal.kind, str(pid) in named) == ("held", True), refusal


def contents(where: Path | Store) -> dict[int, int]:
    """Return the step of every live generation, each loaded and compared to the last bit, and what verify says is nothing."""
    store = where if isinstance(where, Store) else local(where)
    try:
        view = read(store)
    except NotFoundError:
        return {}
    assert oneshot.verify(store).problems == ()
    for number, summary in view.live.items():
        assert bits(oneshot.load(store, which=number)) == bits(state_at(summary.step)), f"generation {number} is a mix"
    return {number: summary.step for number, summary in view.live.items()}


def check_nothing_is_harmed(store: Store, first: list[Ack], second: list[Ack], before: dict[int, int]) -> bool:
    """Hold a root to what both were told, now that the first has gone on; return whether that claimed anew, after the second."""
    taken = min(ack.term for ack in second)
    after, view = contents(store), read(store)
    assert view.head is not None
    boundary = view.terms.settlements[taken].head
    late = [ack for ack in first if ack.term < taken and ack.number > boundary]
    assert late == [], "the first was told of a save which the second had not found"
    anew = any(ack.term > taken for ack in first)
    assert anew or after == before, "what the second had left is not what is there now"
    for ack in [*first, *second]:
        if ack.number not in after:
            # Retired, then; and only by a manifest that was published after it, and that does not keep it.
            assert ack.number < view.head.number
            assert ack.number not in view.head.keep
        elif ack.term == view.live[ack.number].term:
            assert after[ack.number] == ack.step
    return anew


def check_how_the_first_ended(scene: Scene, before: dict[int, int]) -> None:
    first, second = scene.acknowledged("first"), scene.acknowledged("second")
    anew = check_nothing_is_harmed(local(scene.root), first, second, before)
    (ended,) = scene.notes("ended")
    assert ended in (FENCED, DONE, GONE)
    if ended == GONE:
        claimed_again = read(local(scene.root)).terms.highest > max(ack.term for ack in second)
        assert claimed_again, "it looked at what was there before the second had claimed"
    assert ended != DONE or anew or first, "it ended as if all were well, and had saved nothing"


def check_the_run_set_aside_is_whole(scene: Scene, before: dict[int, int]) -> None:
    """Check that what the first was told is saved went aside with its run, and stayed as it was put there."""
    (home,) = (scene.root / "reset").iterdir()
    assert contents(home) == before
    view = read(local(home))
    assert view.head is not None
    for ack in scene.acknowledged("first"):
        assert before.get(ack.number) == ack.step or (ack.number < view.head.number and ack.number not in view.head.keep)
    assert scene.notes("ended") == [FENCED]


def check_a_third_start_goes_on(scene: Scene) -> None:
    head = read(local(scene.root)).head
    assert head is not None
    with Training(local(scene.root), keep=Keep(last=2)) as third:
        restored = third.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.skipped) == (head.number, ())
        assert third.is_at(head.step)
        check_nothing_is_left_over(scene.root)
        third.save(21)
    assert bits(oneshot.load(local(scene.root))) == bits(state_at(21))


def check_nothing_is_left_over(root: Path) -> None:
    """Check that what the first had begun, and never finished, is gone with the next claim."""
    view = read(local(root))
    named = {blob.name for summary in view.listing.summaries.values() for blob in summary.blobs}
    assert {path.relative_to(root).as_posix() for path in (root / "blobs").iterdir()} == named
    assert set(view.listing.summaries) == set(view.live)


Act = Callable[[Scene, Stoppable], object]
Prepare = Callable[[Scene], object]

ACTS: dict[str, tuple[Prepare, Act]] = {
    "a save that retires": (three_generations, save_and_retire),
    "a first claim": (nothing, claim_and_sweep),
    "a claim that sweeps": (litter_of_killed_saves, claim_and_sweep),
    "a save on a full disk that trims": (three_generations, save_on_a_full_disk),
    "a rollback": (three_generations, roll_back),
}
