"""A run root may be moved, copied and named in any way a path can be named: it resumes to the same bits. B11, B14"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.errors import MilepostError, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins
from milepost.publish.view import read
from milepost.store.local import LocalStore
from tests.engine.training import Training, bits, local, state_at, without_git
from tests.places.odd_places import files_in

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Give a directory on another file system than the tests' own."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        pytest.skip("not run: there is no /dev/shm to move to")
    made = Path(tempfile.mkdtemp(prefix="milepost-places-", dir=memory))
    yield made
    shutil.rmtree(made)


def train(root: Path | str, *steps: int) -> None:
    with Training(LocalStore(root, SystemClock()), keep=Keep(last=3)) as training:
        training.engine.resume()
        for step in steps:
            training.save(step)


def resumes_at(root: Path | str, step: int) -> None:
    """Check that a run resumes there, exactly, and that its next save works, too."""
    with Training(LocalStore(root, SystemClock()), keep=Keep(last=3)) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.step == step
        assert restored.exact
        assert training.is_at(step)
        training.save(step + 1)
    assert oneshot.verify(root).ok
    assert bits(oneshot.load(root)) == bits(state_at(step + 1))


def everything_a_run_can_write(root: Path) -> None:
    """Save, take over, pin, roll back, reset, mark: let every kind of record be there."""
    train(root, 1, 2)
    train(root, 3)
    pins.pin(local(root), 2, by="test")
    oneshot.rollback(root, 2)
    head = read(local(root)).head
    assert head is not None
    blob = root / head.blobs[0].name
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    train(root, 4)  # passes the damage over, and marks it
    oneshot.reset(root)
    train(root, 5, 6)


# --- moved and copied


def copied_as_rsync_does(source: Path, target: Path) -> None:
    """Copy the bytes and nothing else: no modes, no times, no links, each file under another name first."""
    for path in sorted(source.rglob("*")):
        to = target / path.relative_to(source)
        if path.is_dir():
            to.mkdir(parents=True, exist_ok=True)
        else:
            part = to.with_name(f".{to.name}.Xy12Zw")
            part.write_bytes(path.read_bytes())
            part.replace(to)


MOVES: dict[str, Callable[[Path, Path], object]] = {
    "mv": lambda source, target: subprocess.run(["mv", source, target], check=True),
    "cp -a": lambda source, target: subprocess.run(["cp", "-a", source, target], check=True),
    "tar": lambda source, target: subprocess.run(
        f"mkdir '{target}' && tar -C '{source}' -cf - . | tar -C '{target}' -xf -", shell=True, check=True
    ),
    "rsync": lambda source, target: (target.mkdir(), copied_as_rsync_does(source, target)),
}


@pytest.mark.parametrize("how", MOVES)
def test_a_moved_root_resumes_exactly(tmp_path: Path, how: str) -> None:
    train(tmp_path / "here", 1, 2, 3)
    (tmp_path / "there").mkdir()
    MOVES[how](tmp_path / "here", tmp_path / "there" / "run")
    resumes_at(tmp_path / "there" / "run", 3)
    if how != "mv":
        resumes_at(tmp_path / "here", 3)  # the copy has not taken anything from it


@pytest.mark.parametrize("how", MOVES)
def test_it_may_be_another_file_system(tmp_path: Path, in_memory: Path, how: str) -> None:
    train(tmp_path / "run", 1, 2, 3)
    MOVES[how](tmp_path / "run", in_memory / "run")
    resumes_at(in_memory / "run", 3)
    MOVES[how](in_memory / "run", tmp_path / "back")
    resumes_at(tmp_path / "back", 4)


def test_a_run_that_was_set_aside_may_be_moved_out_and_goes_on_there(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, 2, 3)
    moved = oneshot.reset(tmp_path / "run")
    (tmp_path / "run" / moved.to).rename(tmp_path / "old")
    resumes_at(tmp_path / "old", 3)
    train(tmp_path / "run", 7)
    resumes_at(tmp_path / "run", 7)


def test_no_file_of_a_root_holds_the_path_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "a-name-nothing-else-has"
    everything_a_run_can_write(root)
    found = files_in(root)
    # Every kind of record is among them, or this test would say nothing.
    assert [each for each in (*layout.DIRECTORIES, layout.ASIDE) if not any(f"/{each}" in f"/{name}" for name in found)] == []
    named = [name for name, data in found.items() for text in (b"a-name-nothing", os.fsencode(tmp_path)) if text in data]
    assert named == []


def test_no_two_names_of_a_root_differ_in_case_only(tmp_path: Path) -> None:
    # Else a run that is copied to a file system that takes them for one (macOS, Windows shares) loses a file.
    everything_a_run_can_write(tmp_path / "run")
    names = [str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(name.isascii() for name in names)
    assert [name for name in names if name.rpartition("/")[2] != layout.LATEST and name != name.lower()] == []


# --- named in other ways


def test_a_relative_root_stays_where_it_is_while_the_process_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Training(LocalStore("run", SystemClock())) as training:
        training.save(1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        training.save(2)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    resumes_at(tmp_path / "run", 2)


@pytest.mark.parametrize("written", [".", "./", "../run", "sub/..", ""])
def test_the_working_directory_can_be_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "sub").mkdir()
    train(tmp_path / "run", 1)
    monkeypatch.chdir(tmp_path / "run")
    resumes_at(written or str(tmp_path / "run" / "."), 1)


@pytest.mark.parametrize("ending", ["/", "//", "/."])
def test_a_slash_at_the_end_changes_nothing(tmp_path: Path, ending: str) -> None:
    train(f"{tmp_path}/run{ending}", 1)
    resumes_at(tmp_path / "run", 1)


def test_a_root_may_be_a_symbolic_link_or_lie_behind_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    (tmp_path / "runs").symlink_to(tmp_path)
    train(tmp_path / "run", 1)
    resumes_at(tmp_path / "runs" / "run", 1)
    assert (tmp_path / "run").is_symlink()
    resumes_at(tmp_path / "disk", 2)


def test_both_names_of_a_linked_root_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with Training(tmp_path / "run"), pytest.raises(MilepostError) as caught, Training(tmp_path / "disk"):
        pytest.fail("two writers")
    assert caught.value.kind == "held"


def test_two_dots_after_a_link_lead_above_what_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "me").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runs").symlink_to(tmp_path / "scratch" / "me")
    train(f"{tmp_path}/home/runs/../other", 1)
    resumes_at(tmp_path / "scratch" / "other", 1)
    assert not (tmp_path / "home" / "other").exists()


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 200
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES)
def test_a_root_may_have_any_name_a_directory_can_have(name: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        train(f"{made}/{name}", 1)
        resumes_at(f"{made}/{name}", 1)
        assert os.listdir(made) == [name]


@pytest.mark.parametrize("name", ["with space", "with\nnewline", "Übung-實驗", "%41", "a:b", "-dash", "~tilde", "b\udcff\udcfe"])
def test_these_in_particular(tmp_path: Path, name: str) -> None:
    train(tmp_path / name, 1)
    resumes_at(tmp_path / name, 1)


def test_a_root_may_lie_as_deep_as_the_system_allows_and_beyond_that_the_error_says_so(tmp_path: Path) -> None:
    limit = os.pathconf(tmp_path, "PC_PATH_MAX")
    deep = str(tmp_path)
    while len(deep) + 101 < limit - 150:
        deep += "/" + "d" * 100
    train(deep, 1)
    resumes_at(deep, 1)
    deeper = deep + "/" + "e" * (limit - len(deep) - 20)
    with pytest.raises(StoreError) as caught:
        train(deeper, 1)
    assert caught.value.kind == "name-too-long"


# --- named wrongly


@pytest.mark.parametrize("below", ["", "/run", "/sub/run"])
def test_a_root_at_or_below_a_file_is_one_clear_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(StoreError) as caught:
        train(f"{tmp_path}/file{below}", 1)
    assert caught.value.kind == "not-a-directory"
    assert "choose a directory" in caught.value.hint
    assert files_in(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("below", ["", "/run"])
def test_a_link_that_leads_nowhere_is_one_clear_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "scratch").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(StoreError) as caught:
        train(f"{tmp_path}/scratch{below}", 1)
    assert caught.value.kind == "not-a-directory"
    assert "leads nowhere" in caught.value.message
    assert not (tmp_path / "not-mounted").exists()


def copy_beside_a_trainer(root: Path, copy: Path, training: Training, order: list[str]) -> None:
    """Copy one name after the other, while the trainer saves and keeps one generation."""
    step = 10
    for name in order:
        for _ in range(2):
            step += 1
            training.save(step)
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name)
        else:
            shutil.copy(root / name, copy / name)


@pytest.mark.parametrize("pinned", [True, False])
@given(orders=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_copy_made_beside_a_trainer_resumes_where_a_generation_was_pinned_before_and_is_never_a_mixture(
    pinned: bool, orders: st.DataObject
) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        root, copy = Path(place, "run"), Path(place, "copy")
        copy.mkdir()
        with Training(root, keep=Keep(last=1)) as training:
            training.save(10)
            if pinned:
                pins.pin(local(root), 1)
            names = sorted(path.name for path in root.iterdir())
            copy_beside_a_trainer(root, copy, training, orders.draw(st.permutations(names)))
        with Training(copy, keep=Keep(last=1)) as there:
            try:
                restored = there.engine.resume()
            except MilepostError:
                assert not pinned
                return
            assert restored is not None
            assert restored.exact
            assert restored.step >= 10
            assert there.is_at(restored.step)
            assert there.save(99).step == 99
