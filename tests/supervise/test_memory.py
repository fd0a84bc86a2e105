"""Count OOM kills: in control groups as machines and containers have them, and a real one where one can be made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from milepost.supervise.causes import End, classify
from milepost.supervise.memory import OomKills

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\noom_group_kill 7\n"
MOUNT_V1 = "35 31 0:32 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,memory\n"
MOUNT_V2 = "41 31 0:38 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


class Machine:
    """A tree in the place of ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def describe(self, groups: str, mounts: str) -> None:
        self.write("proc/self/cgroup", groups)
        self.write("proc/self/mountinfo", OTHER + mounts)

    def count(self, text: str, groups: dict[str, int]) -> None:
        for path, number in groups.items():
            self.write(path, text.format(number))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.write("proc/vmstat", "nr_free_pages 1\noom_kill 50\noom_kill_other 3\n")
    return found


V1_OWN = "sys/fs/cgroup/memory/job/memory.oom_control"
V2_OWN = "sys/fs/cgroup/job/memory.events"


def v1(machine: Machine) -> None:
    machine.describe("4:memory:/job\n1:cpu,cpuacct:/\n", MOUNT_V1.format(root="/", point="/sys/fs/cgroup/memory"))
    machine.count(V1, {V1_OWN: 2, "sys/fs/cgroup/memory/memory.oom_control": 40})


def v2(machine: Machine) -> None:
    machine.describe("0::/job\n", MOUNT_V2.format(root="/", point="/sys/fs/cgroup"))
    machine.count(V2, {V2_OWN: 2})


@pytest.mark.parametrize(("lay", "own", "text"), [(v1, V1_OWN, V1), (v2, V2_OWN, V2)])
def test_the_growth_of_the_own_groups_counter_is_counted(machine: Machine, lay: object, own: str, text: str) -> None:
    lay(machine)  # type: ignore[operator]
    kills = OomKills(machine.root)
    assert kills.grown() == 0
    machine.count(text, {own: 5})
    assert kills.grown() == 3
    assert kills.source.endswith(own)


def test_a_group_that_is_gone_counts_what_was_last_seen_of_it(machine: Machine) -> None:
    v2(machine)
    kills = OomKills(machine.root)
    machine.count(V2, {V2_OWN: 3})
    kills.sample()
    (machine.root / V2_OWN).unlink()
    assert kills.grown() == 1


def test_in_version_1_the_groups_below_are_counted_too(machine: Machine) -> None:
    v1(machine)
    below = "sys/fs/cgroup/memory/job/trainer/env/memory.oom_control"
    machine.count(V1, {below: 9})
    kills = OomKills(machine.root)
    machine.count(V1, {below: 10, V1_OWN: 3, "sys/fs/cgroup/memory/job/new/memory.oom_control": 2})
    assert kills.grown() == 1 + 1 + 2


def test_the_topmost_group_of_version_1_does_not_count_for_the_whole_machine(machine: Machine) -> None:
    machine.describe("4:memory:/\n", MOUNT_V1.format(root="/", point="/sys/fs/cgroup/memory"))
    machine.count(V1, {"sys/fs/cgroup/memory/memory.oom_control": 0, "sys/fs/cgroup/memory/somebody/memory.oom_control": 0})
    kills = OomKills(machine.root)
    machine.count(V1, {"sys/fs/cgroup/memory/somebody/memory.oom_control": 8})
    assert kills.grown() == 0


def test_in_version_2_a_group_without_memory_is_counted_by_the_next_above_it(machine: Machine) -> None:
    machine.describe("0::/user.slice/session/job\n", MOUNT_V2.format(root="/", point="/sys/fs/cgroup"))
    (machine.root / "sys/fs/cgroup/user.slice/session/job").mkdir(parents=True)
    machine.count(V2, {"sys/fs/cgroup/user.slice/memory.events": 1})
    kills = OomKills(machine.root)
    machine.count(V2, {"sys/fs/cgroup/user.slice/memory.events": 2})
    assert kills.grown() == 1


@pytest.mark.parametrize("memory_in", [1, 2])
def test_of_a_hybrid_machine_that_version_counts_which_has_the_memory(machine: Machine, memory_in: int) -> None:
    mounts = MOUNT_V2.format(root="/", point="/sys/fs/cgroup/unified")
    if memory_in == 1:
        mounts += MOUNT_V1.format(root="/", point="/sys/fs/cgroup/memory")
    machine.describe("4:memory:/job\n0::/job\n" if memory_in == 1 else "1:name=systemd:/job\n0::/job\n", mounts)
    (machine.root / "sys/fs/cgroup/unified/job").mkdir(parents=True)
    own, text = (V1_OWN, V1) if memory_in == 1 else ("sys/fs/cgroup/unified/job/memory.events", V2)
    machine.count(text, {own: 0})
    kills = OomKills(machine.root)
    machine.count(text, {own: 1})
    assert (kills.grown(), kills.source.endswith(own)) == (1, True)


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/job", "/", "/../other"])
@pytest.mark.parametrize(("mount", "text", "name"), [(MOUNT_V1, V1, "memory.oom_control"), (MOUNT_V2, V2, "memory.events")])
def test_in_a_container_the_mount_begins_at_its_own_group(machine: Machine, path: str, mount: str, text: str, name: str) -> None:
    """The path is the host's, or of a namespace of its own; the mount shows the container's group, and no more."""
    line = "0::" if mount == MOUNT_V2 else "4:memory:"
    machine.describe(f"{line}{path}\n", mount.format(root="/docker/abc", point="/sys/fs/cgroup/m"))
    own = f"sys/fs/cgroup/m/job/{name}" if path.endswith("job") else f"sys/fs/cgroup/m/{name}"
    machine.count(text, {own: 0})
    kills = OomKills(machine.root)
    machine.count(text, {own: 1})
    assert (kills.grown(), kills.source.endswith(own)) == (1, True)


def test_a_path_with_a_space_is_found(machine: Machine) -> None:
    machine.describe("0::/job\n", MOUNT_V2.format(root="/", point="/sys/fs/c\\040group"))
    machine.count(V2, {"sys/fs/c group/job/memory.events": 1})
    assert OomKills(machine.root).source.endswith("c group/job/memory.events")


@pytest.mark.parametrize("groups", ["", "4:memory:/job\n", "0::/job\n", "nonsense", "4:memory:/job/../../..\n"])
def test_where_no_group_can_be_read_the_machine_is_counted(machine: Machine, groups: str) -> None:
    machine.describe(groups, MOUNT_V1.format(root="/", point="/sys/fs/cgroup/memory"))
    kills = OomKills(machine.root)
    machine.write("proc/vmstat", "oom_kill 52\n")
    assert (kills.grown(), kills.source.endswith("proc/vmstat")) == (2, True)


def test_an_old_kernel_without_the_count_falls_back(machine: Machine) -> None:
    v1(machine)
    machine.write(V1_OWN, "oom_kill_disable 0\nunder_oom 0\n")
    assert OomKills(machine.root).source.endswith("proc/vmstat")


def test_where_nothing_can_be_read_nothing_is_counted(tmp_path: Path) -> None:
    kills = OomKills(tmp_path)
    assert (kills.grown(), kills.source) == (0, "")


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="no /proc on this system")
def test_this_machine_is_read() -> None:
    kills = OomKills()
    assert Path(kills.source).is_file()
    assert kills.grown() == 0


# A real one.

SUPERVISES = """
import json, os, subprocess, sys
open(sys.argv[1], "w").write(str(os.getpid()))
from milepost.supervise.memory import OomKills
kills = OomKills()
code = subprocess.run([sys.executable, "-c", "bytearray(1 << 30)"]).returncode
print(json.dumps({"code": code, "grown": kills.grown(), "source": kills.source}))
"""
LIMIT_BYTES = 96 << 20


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of a few megabytes below our own, never above what we were given; skips where we may not make one."""
    counter = Path(OomKills().source)
    if counter.name not in ("memory.oom_control", "memory.events"):
        pytest.skip("no control group of this process counts memory")
    limit = "memory.limit_in_bytes" if counter.name == "memory.oom_control" else "memory.max"
    group = counter.parent / f"milepost-oom-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip("memory is not handed out to groups below our own (version 2, and processes beside them)")
        (group / limit).write_text(str(LIMIT_BYTES))
        with suppress(OSError):  # no swap here, or no such file
            (group / limit.replace("memory.", "memory.memsw.").replace("memsw.max", "swap.max")).write_text(str(LIMIT_BYTES))
        yield group
    finally:
        group.rmdir()


def test_a_real_oom_kill_is_counted_by_its_group_and_by_the_one_above(small_group: Path) -> None:
    above = OomKills()
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISES, str(small_group / "cgroup.procs")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["code"] == -signal.SIGKILL
    assert told["grown"] == 1
    assert Path(told["source"]).parent == small_group
    assert above.grown() == 1
    cause = classify(End(None, signal.SIGKILL, oom_kills=told["grown"]))
    assert (cause.kind, cause.budget) == ("host-memory", "user")
