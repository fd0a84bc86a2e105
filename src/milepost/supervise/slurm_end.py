"""Find when SLURM ends this job: its environment says so, or SLURM is asked, once."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 20.0
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$|(?:(\d+)-)(\d+)(?::(\d+))?$", re.ASCII)


def in_a_job(environment: Mapping[str, str]) -> bool:
    """Return whether this process runs in a SLURM job."""
    return bool(environment.get("SLURM_JOB_ID"))


def told_end_wall_ns(environment: Mapping[str, str]) -> int | None:
    """Return the end of the job by the wall clock, if the environment tells (SLURM 22.05 and newer)."""
    text = environment.get("SLURM_JOB_END_TIME", "")
    return int(text) * 10**9 if text.isascii() and text.isdigit() and int(text) > 0 else None


def asked_left_s(environment: Mapping[str, str]) -> tuple[float | None, str]:
    """Ask SLURM how many seconds are left of the job; return them, or None and what was answered. Takes up to 40 seconds.

    What is left and not when it ends: that is told in the time zone of whoever is asked.
    """
    job = job_of(environment)
    text, trouble = ask("squeue", "--noheader", "--jobs", job, "--format", "%L")
    if text is not None:
        return seconds_left(text), text.strip()
    text, second = ask("scontrol", "--oneliner", "show", "job", job)
    if text is None:
        return None, f"{trouble}; {second}"
    run, limit = (re.search(rf"\b{name}=(\S+)", text) for name in ("RunTime", "TimeLimit"))
    ran_s, may_s = (seconds_left(found[1]) if found else None for found in (run, limit))
    return (may_s - ran_s if ran_s is not None and may_s is not None else None), f"TimeLimit={limit[1] if limit else '?'}"


def job_of(environment: Mapping[str, str]) -> str:
    """Return what SLURM calls this job: the last task of an array has the id of the whole array."""
    array, task = (environment.get(f"SLURM_ARRAY_{name}", "") for name in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def seconds_left(text: str) -> float | None:
    """Return a length of time as SLURM writes it; None for ``UNLIMITED`` and the like.

    >>> [seconds_left(text) for text in ("1-02:03:04", "59:30", "2:00:00", "1-12", "UNLIMITED")]
    [93784.0, 3570.0, 7200.0, 129600.0, None]
    """
    found = _LEFT.match(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds, days_only, hours_only, minutes_only = (int(part or 0) for part in found.groups())
    return float(((days + days_only) * 24 + hours + hours_only) * 3600 + (minutes + minutes_only) * 60 + seconds)


def ask(*command: str) -> tuple[str | None, str]:
    """Return what a program prints; else None, and why not."""
    program = shutil.which(command[0])
    if program is None:
        return None, f"there is no {command[0]}"
    try:
        done = subprocess.run(  # noqa: S603 - SLURM's own program, by its own name
            [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} did not answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return None, f"{command[0]} cannot be run: {error.strerror}"
    complaint = done.stderr.strip().splitlines()
    return (
        (done.stdout, "") if done.returncode == 0 else (None, f"{command[0]}: {complaint[-1] if complaint else done.returncode}")
    )
