"""A file system that is really full. It is mounted in a name space of its own, which ends with the child that uses it. C14"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sick.real_disk import STORIES

REPOSITORY = Path(__file__).parents[2]
OPTIONS = {
    "no_inodes": "size=8m,nr_inodes=48",
    "heals_of_inodes": "size=8m,nr_inodes=64",
    "heals": "size=3m",
    "commands": "size=4m",
}


def inside(place: Path, options: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` where ``place`` is a small file system of its own; nobody else ever sees it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("a really full disk: not run: there is no unshare(1) here")
    space = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--user", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o "$0" milepost "$1" && shift && exec "$@"'
    return subprocess.run(
        [*space, "sh", "-c", mount, options, str(place), *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("story", STORIES)
def test_a_really_full_disk(tmp_path: Path, story: str) -> None:
    options = OPTIONS.get(story, "size=4m")
    if inside(tmp_path, options, "true").returncode != 0:
        pytest.skip("a really full disk: not run: mounting is not allowed here")
    done = inside(tmp_path, options, sys.executable, "-W", "error", "-m", "tests.sick.real_disk", story, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "what was mounted is gone with the child"
