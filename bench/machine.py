"""Say what machine the figures are of, and put its caches and its memory into a known state."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

PACKAGES = ("milepost", "numpy", "torch", "safetensors", "stable-baselines3")
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def facts(place: Path, packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return what a reader needs to know to compare these figures with others. No names of hosts, no paths."""
    versions = {name: metadata.version(name) for name in packages if _installed(name)}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": _line("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}",
        "file system": _file_system(place),
        "huge pages": _THP.read_text().strip() if _THP.exists() else "unknown",
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _line(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "unknown")


def _file_system(place: Path) -> str:
    """Return the type of the file system that ``place`` is on: that of its device in this process's table of mounts."""
    status = os.stat(place)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == device), "unknown")


def files_below(root: Path) -> Iterator[Path]:
    """Yield every file of a tree, or the one file itself."""
    yield from [root] if root.is_file() else (path for path in root.rglob("*") if path.is_file())


def drop_cached(root: Path) -> None:
    """Have the kernel forget what it holds of a file or a tree, so that the next read comes from the disk."""
    for path in files_below(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what is dirty stays in memory
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes() -> int:
    """Return how much memory this process holds now."""
    return _status_bytes("VmRSS")


def forget_peak() -> None:
    """Start to measure the peak anew; where the kernel does not offer that, the peak so far stays in."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """Return the most memory this process held at once since `forget_peak`."""
    return _status_bytes("VmHWM")


def children_peak_bytes() -> int:
    """Return the most memory that each child of this process ever held, added up."""
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile has no children any more
            children.update((task / "children").read_text().split())
    return sum(_status_bytes("VmHWM", child) for child in children)


def _status_bytes(key: str, process: str = "self") -> int:
    found = _line(f"/proc/{process}/status", key).split()
    return int(found[0]) * 1024 if found[0].isdigit() else 0
