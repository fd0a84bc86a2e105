"""Say of each kind of end who pays for it, how often it may come again, and what a person should do.

A row is a policy, not a finding: `milepost.supervise.causes.classify` finds the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.lifecycle.stopping import INTERRUPTED
from milepost.records import FaultKind

Budget: TypeAlias = Literal["none", "user", "infrastructure", "preemption"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Hold what is done about one kind of end."""

    budget: Budget
    advice: str = ""
    fault: FaultKind = "soft"
    retries: int | None = None
    """How often it is started again after this kind without a new generation between; None: as often as the budget has it."""
    back_after: int = 0
    """The generation it went on from is doubted once that many such ends came without a new one; 0: never, it is innocent."""
    is_patient: bool = False
    """Whether to wait long: what is in the way goes by itself or not at all, and asking often makes it worse."""
    is_leaving: bool = False
    """Whether this machine, or the time given to it, is about to end: starting again belongs to the platform."""
    exit_code: int | None = None
    """What `milepost run` exits with instead of the command's own code. Schedulers tell ends apart by it."""


KINDS: dict[str, Kind] = {
    # It ended because it was to end.
    "done": Kind("none", fault="none"),
    "interrupted": Kind("none", "run the same command again to go on", fault="none", exit_code=INTERRUPTED),
    "preempted": Kind("preemption", fault="none"),
    "requeue-asked": Kind("preemption", fault="none"),
    "notice": Kind("preemption", "this machine is about to go: start it again on another", fault="none", is_leaving=True),
    "time-up": Kind("preemption", "its time was up: start it again for more", fault="none", is_leaving=True),
    "stopped-unsaved": Kind(
        "preemption",
        "what it did since its newest generation is lost: a command that uses milepost saves first; is the engine reached, and"
        " a safe point within the grace period?",
    ),
    "grace-too-short": Kind(
        "preemption",
        "give it longer: --grace, and what your platform waits before it kills; or CheckpointEngine(grace=...), which keeps"
        " the last safe point staged",
    ),
    "terminated": Kind("infrastructure", "somebody else sent it the signal: a platform, an operator, a limit"),
    # Memory.
    "host-memory": Kind(
        "user",
        "give it more memory, or let it take less: staging_bytes=, a smaller replay buffer, fewer env workers",
        retries=1,
    ),
    "memory": Kind("user", "it asked for more memory than it may have: ulimit -v, or an array that is too large", retries=1),
    "device-memory": Kind(
        "user",
        "give it less to hold: a smaller batch, or another process's memory on that device (nvidia-smi names it)",
        retries=1,
    ),
    "shared-memory": Kind(
        "user", "shared memory is full: docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory", retries=1
    ),
    "device-assert": Kind("user", "an index out of range in a kernel: CUDA_LAUNCH_BLOCKING=1 shows in which", back_after=3),
    # The machine, its devices, its network, its disks.
    "device": Kind(
        "infrastructure", "if it comes again take that device or machine out: nvidia-smi -q, dmesg | grep -i xid", "hard"
    ),
    "nccl": Kind("infrastructure", "one rank waits for another that is gone or slow: look for the first rank that failed"),
    "connection": Kind("infrastructure", "look whether the peer is up and its address is right"),
    "hang": Kind("infrastructure", "its stacks say where it stood: look for a lock, a queue or a peer", back_after=3),
    "killed": Kind(
        "infrastructure",
        "SIGKILL comes from outside: the platform, an operator, or the kernel's OOM killer where its counters cannot be read"
        " (dmesg | grep -i oom)",
        back_after=3,
    ),
    "native": Kind(
        "infrastructure",
        "native code crashed: PYTHONFAULTHANDLER=1 shows where; a core tells more",
        retries=2,
        back_after=2,
    ),
    "stale": Kind("infrastructure", "the file server took a file away under it: it is opened anew by the next start"),
    "io": Kind("infrastructure", "a disk or its network failed: dmesg; milepost doctor fs tries the run root"),
    "disk-full": Kind(
        "infrastructure",
        "make room: milepost gc ROOT shows what can go and deletes nothing without --yes; df -h and df -i show what is full",
        retries=0,
        exit_code=16,
    ),
    "read-only": Kind(
        "infrastructure", "the file system takes no writes: mounted so, or after an error: dmesg", retries=0, exit_code=12
    ),
    "output": Kind("infrastructure", "is the disk of its log full, or the reader of its output gone?", retries=1),
    # milepost's own words.
    "another-writer": Kind(
        "infrastructure",
        "one process writes to a run root: see who holds it in the message; milepost run waits for it to end",
        is_patient=True,
        exit_code=11,
    ),
    "fenced": Kind(
        "infrastructure",
        "another process has taken this run over, and this one must not take it back: stop one of the two",
        fault="none",
        retries=0,
        exit_code=11,
    ),
    "damaged": Kind("user", "milepost verify ROOT names what is damaged, and what is whole", "data", retries=1, exit_code=13),
    "nothing-valid": Kind(
        "user",
        "nothing was deleted: milepost ls --all ROOT and milepost verify ROOT say what is there; a copy, a pinned generation or"
        " parts= may still help",
        "data",
        retries=0,
        exit_code=14,
    ),
    "mismatch": Kind(
        "user", "the saved state and the code do not fit: bring the code back, or say on_mismatch=", retries=0, exit_code=15
    ),
    "permission": Kind("user", "look who owns the path, and as whom this runs", retries=0, exit_code=12),
    "usage": Kind("user", "it was called or configured in a way that cannot work", retries=0, exit_code=2),
    "internal": Kind("user", "this is a bug in milepost: report the traceback", back_after=3),
    # The command itself.
    "not-started": Kind("user", "is the command spelled right, executable, and on PATH?", retries=0),
    "import": Kind("user", "starting again cannot heal it: pip list; is it the right environment?", retries=0),
    "syntax": Kind("user", "starting again cannot heal it: the file does not compile", retries=0),
    "exception": Kind("user", back_after=3),
    "exit": Kind("user", "it gave a code and no reason: its own log says more", back_after=3),
}
