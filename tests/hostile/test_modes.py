"""Who may read a run root is for the umask to say, of every file and directory in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost
from milepost.engine import oneshot
from tests.engine.training import local
from tests.hostile.planted import live_state


@pytest.fixture(params=[0o077, 0o002, 0o022, 0o027], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {path.relative_to(root.parent).as_posix(): stat.S_IMODE(path.lstat().st_mode) for path in [root, *root.rglob("*")]}


def test_every_file_and_directory_has_the_mode_that_the_umask_leaves(umask: int, tmp_path: Path) -> None:
    root = tmp_path / "new" / "run"
    with milepost.CheckpointEngine(local(root), state=live_state()) as engine:
        for step in (1, 2, 3):
            engine.save(step)
        engine.wait()
        store = local(root)
        with store.open_blob("blobs/000009-t1-00000000000000aa.safetensors") as half:  # a .part, as a kill leaves it
            half.write(b"x" * (2 << 20))
            found = modes(root)
            assert any(name.endswith(".part") for name in found)
    assert store.replace_if("cas", None, b"x")
    milepost.save(root, {"extra": {}})
    oneshot.reset(root)
    found |= modes(root)
    assert {"run/writer.lock", "run/cas.lock", "run/LATEST", "run/milepost.json", "run/ballast"} <= found.keys()
    for name, mode in found.items():
        is_directory = (root.parent / name).is_dir()
        assert mode == (0o777 if is_directory else 0o666) & ~umask, f"{name} has {mode:o}"
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o777 & ~umask
