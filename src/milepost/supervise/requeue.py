"""Have SLURM start a job again. Everywhere else exit code 75 says it, and the platform does it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from milepost.engine.supervised import ATTEMPT
from milepost.supervise.slurm_end import ask, in_a_job, job_of

MOST = 1000
"""How often a job is put back, where nobody says: a job that ends at once would come back for ever."""

_STATE = re.compile(r"\bJobState=(\w+)")
_ENDED = ("COMPLETING", "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")
"""Whoever cancels a job does not want it back. Nor is one put back whose time is over already: it shows the same state."""


def requeue(environment: Mapping[str, str], *, most: int = MOST) -> str:
    """Ask SLURM to start this job again, and return what came of it in words; empty outside a job.

    To be called when all is saved: SLURM ends the job then. It is asked by one task of a job only, and at most ``most`` times
    in the life of the job; `milepost run` ends with 75 either way. Takes up to 40 seconds.
    """
    if not in_a_job(environment):
        return ""
    refusal = _refusal(environment, most)
    if refusal:
        return f"SLURM was not asked to start it again: {refusal}"
    job = environment.get("SLURM_HET_JOB_ID") or job_of(environment)
    state, trouble = ask("scontrol", "--oneliner", "show", "job", job)
    found = _STATE.search(state or "")
    if state is None:
        return f"SLURM was not asked to start it again: {trouble}"
    if found is not None and found[1] in _ENDED:
        words = "cancelled, or its time is over; --signal=B:TERM@120 has it leave before that"
        return f"SLURM was not asked to start it again: job {job} is {found[1]} ({words})"
    if re.search(r"\bRequeue=0\b", state):
        return f"SLURM was not asked to start it again: job {job} may not be requeued: sbatch --requeue"
    answer, trouble = ask("scontrol", "requeue", job)
    return f"SLURM was asked to start job {job} again" if answer is not None else f"SLURM does not start it again: {trouble}"


def attempts_before(environment: Mapping[str, str]) -> int:
    """Return how many attempts came before the first of this `milepost run`, at least: numbers of attempts go on over requeues.

    >>> attempts_before({}), attempts_before({"SLURM_RESTART_COUNT": "2"}), attempts_before({"MILEPOST_ATTEMPT": "4"})
    (0, 2, 3)
    """
    of_an_outer_run = _count(environment, ATTEMPT) - 1
    return max(0, of_an_outer_run, _count(environment, "SLURM_RESTART_COUNT"))


def _refusal(environment: Mapping[str, str], most: int) -> str:
    if _count(environment, "SLURM_PROCID") > 0:
        return "the first task of the step does that"
    if _count(environment, "SLURM_RESTART_COUNT") >= most:
        return f"that was done {most} times"
    return ""


def _count(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
