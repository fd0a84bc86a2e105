"""Say who made a generation, where, with what: host, process, versions, commit, command line without secrets (B19)."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from milepost.engine.redact import without_secrets
from milepost.engine.supervised import ATTEMPT
from milepost.errors import UsageError
from milepost.publish.term import Identity
from milepost.records import Provenance
from milepost.store.process import boot_id

PACKAGES = (
    ("milepost", "milepost"),
    ("numpy", "numpy"),
    ("torch", "torch"),
    ("gymnasium", "gymnasium"),
    ("stable-baselines3", "stable_baselines3"),
    ("sb3-contrib", "sb3_contrib"),
    ("mujoco", "mujoco"),
    ("ale-py", "ale_py"),
    ("box2d", "Box2D"),
    ("opencv", "cv2"),
)
"""What the bits of a run depend on: packages, with the modules that they are imported as."""


def identity() -> Identity:
    """Return where this process runs."""
    return Identity(socket.gethostname(), boot_id(), os.getpid())


def provenance(who: Identity, incarnation: str) -> Provenance:
    """Return what a manifest says of its maker."""
    return Provenance(
        host=who.host,
        boot_id=who.boot_id,
        pid=who.pid,
        attempt=attempt(),
        incarnation=incarnation,
        command=without_secrets(sys.orig_argv),
        git_commit=git_commit(),
        versions=versions(PACKAGES),
    )


def attempt() -> int:
    """Return which start of the run this is: 1 + the restarts by ``milepost run``."""
    text = os.environ.get(ATTEMPT, "1")
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{ATTEMPT} is not a number of at least 1", kind="bad-environment", hint="unset it", value=text)
    return int(text)


def versions(packages: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the versions of Python and of those ``packages`` that are imported."""
    imported = {package: _version(package, module) for package, module in packages if module in sys.modules}
    return {"python": platform.python_version()} | imported


@cache
def _version(package: str, module: str) -> str:
    # Asked once a process, since each answer is a file that is parsed as a mail: a millisecond, and a start asks twice for each.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # Box2D and OpenCV are installed under several names, and imported under one.
        return str(getattr(sys.modules[module], "__version__", "unknown"))


@cache
def git_commit() -> str:
    """Return the commit of the working directory, with ``+changes`` if files differ from it; empty outside a repository.

    Asked once a process: that is the code which runs, and a large repository on a network disk takes its time.
    """
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603 - fixed arguments
    return done.stdout.strip()


@cache
def script_digest() -> str:
    """Return the start of SHA-256 of the script that runs, as it was when first asked; empty where there is none to read."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ""
    except OSError:
        return ""


def fingerprint(extra: dict[str, str]) -> dict[str, str]:
    """Return what must be equal for the same bits to come out again."""
    found = {f"version/{name}": version for name, version in versions(PACKAGES).items() if name != "milepost"}
    found["machine"] = platform.machine()
    found |= {"code/script": script} if (script := script_digest()) else {}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["threads/torch"] = str(torch.get_num_threads())
        found["cpu_capability"] = str(torch.backends.cpu.get_cpu_capability())
    return found | extra
