"""Say what an engine refuses because of how, when or by whom it is called."""

from __future__ import annotations

from milepost.errors import UsageError


def not_resumed(root: str) -> UsageError:
    """Return what a save is told that comes before the resume."""
    return UsageError(
        "this run has generations, and they were not resumed; saving now would go on from somewhere else",
        kind="not-resumed",
        hint='call engine.resume() first, or engine.resume(which="never") to start anew',
        root=root,
    )


def closed(root: str) -> UsageError:
    """Return what any call is told that comes after the end."""
    return UsageError("this engine is closed", kind="closed", hint="construct a new one", root=root)


def forked(root: str, made_by_pid: int) -> UsageError:
    """Return what a forked child is told."""
    return UsageError(
        "this engine was made in the parent process; a forked child may not save",
        kind="forked",
        hint="save in the process that constructed the engine",
        root=root,
        made_by_pid=made_by_pid,
    )


def flush_within(root: str) -> UsageError:
    """Return what a flush is told that interrupts the engine at work: what it would wait for, its own thread has to do."""
    return UsageError(
        "this thread is at work in the engine, and can flush nothing meanwhile",
        kind="flush-within",
        hint="let a signal handler set a flag, and call flush_staged in another thread or at the next step",
        root=root,
    )
