"""Count what the kernel's OOM killer has ended, from the counters of control groups.

A process that is killed for memory shows SIGKILL and nothing else. What tells it apart is that a counter of its group grew; a
group may go with the process, so the counter is read while the command runs, too. In this order: that of the version which has
the memory (1: ``memory.oom_control``, in which each group counts for itself; 2: ``memory.events``, in which those below count as
well), then ``/proc/vmstat``, which counts for the whole machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MOST_GROUPS = 200
_MOUNT = re.compile(r"\d+ \d+ \S+ (?P<root>\S+) (?P<point>\S+) .*? - (?P<type>cgroup2?) \S+ (?P<options>\S+)")
_OCTAL = re.compile(r"\\([0-7]{3})")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Group:
    """Be a control group as it is mounted here."""

    folder: Path
    top: Path
    """Where its file system is mounted: what lies above cannot be seen."""
    version: int

    @property
    def counter(self) -> str:
        return "memory.events" if self.version == 2 else "memory.oom_control"


class OomKills:
    """Count OOM kills from now on, among this process's control group and those below it. Any thread; one at a time.

    ``root`` is where the machine's ``/proc`` and ``/sys`` are looked for. What cannot be read counts nothing.
    """

    def __init__(self, root: str | Path = "/") -> None:
        everywhere = Path(root) / "proc/vmstat"
        self._groups = _groups(Path(root))
        # Chosen once: when the group is gone, the count of the machine is not its own.
        self._before = self._read() or ({} if (count := _count(everywhere)) is None else {everywhere: count})
        self._last = dict(self._before)

    @property
    def source(self) -> str:
        """Return what is counted, for people; empty if there is nothing to count."""
        return str(next(iter(self._last), ""))

    def sample(self) -> None:
        """Read the counters, which may be gone by the time at which somebody asks."""
        found = self._read() or {path: count for path in self._before if (count := _count(path)) is not None}
        self._last.update(found)

    def grown(self) -> int:
        """Return how many processes were killed for memory since this was made."""
        self.sample()
        return sum(max(0, count - self._before.get(path, 0)) for path, count in self._last.items())

    def _read(self) -> dict[Path, int]:
        for group in self._groups:
            found = {path: count for path in _counters(group) if (count := _count(path)) is not None}
            if found:
                return found
        return {}


def _groups(root: Path) -> list[_Group]:
    """Return this process's groups that may count memory. Where there are both versions, memory belongs to one of them."""
    own, mounts = _text(root / "proc/self/cgroup"), _text(root / "proc/self/mountinfo")
    found: list[_Group] = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1
        if version == 2 or "memory" in controllers.split(","):
            found.extend(_mounted(root, mounts, path, version))
    return found


def _mounted(root: Path, mounts: str, path: str, version: int) -> Iterator[_Group]:
    for mount in _MOUNT.finditer(mounts):
        is_two = mount["type"] == "cgroup2"
        if is_two != (version == 2) or not (is_two or "memory" in mount["options"].split(",")):
            continue
        top = root / _unescaped(mount["point"]).lstrip("/")
        with suppress(ValueError):
            # In a container the mount may begin at the container's own group, and the path still tell where the host has it.
            inside = PurePosixPath(path).relative_to(_unescaped(mount["root"]))
            if ".." not in inside.parts:
                yield _Group(top / inside, top, version)
                continue
        if mount["root"] != "/":
            yield _Group(top, top, version)  # the path is of another namespace than the mount: all that can be seen here is ours


def _counters(group: _Group) -> Iterator[Path]:
    """Yield the counters that together count for a group."""
    if group.version == 2:
        folder = group.folder
        while not (folder / group.counter).exists() and folder != group.top:
            folder = folder.parent  # memory may be handed out further up only
        yield folder / group.counter
        return
    yield group.folder / group.counter
    if group.folder != group.top:  # below the topmost lies the whole machine
        yield from (folder / group.counter for folder in _below(group.folder))


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    todo = [folder]
    while todo and len(found) < _MOST_GROUPS:
        with suppress(OSError):
            below = [each for each in todo.pop().iterdir() if each.is_dir() and not each.is_symlink()]
            found.extend(below)
            todo.extend(below)
    return found[:_MOST_GROUPS]


def _count(path: Path) -> int | None:
    found = _COUNT.search(_text(path))
    return int(found[1]) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
