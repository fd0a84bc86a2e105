"""End the process that ``dcp.async_save`` saves in, where torch itself never does."""

from __future__ import annotations

from milepost.errors import UsageError


def end_process(wait_s: float = 5.0) -> bool:
    """End the process in which ``dcp.async_save(..., async_checkpointer_type=PROCESS)`` saves for this rank, if there is one.

    Call it on all ranks, with no save in flight: after one of these processes has died, torch sends every later save to the
    dead one; after this, the next ``async_save`` begins new ones. The run root is given up with it, since it is the process of
    rank 0 that holds it. Returns whether there was one. Raises `UsageError` (kind ``other-torch``) if torch keeps it elsewhere.
    """
    try:
        from torch.distributed.checkpoint import _async_process_executor as executor

        process, executor._CHECKPOINT_PROCESS = executor._CHECKPOINT_PROCESS, None
        child = process._save_process if process is not None else None
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "this torch keeps its checkpoint process elsewhere", kind="other-torch", hint="end it as this torch does"
        ) from error
    if child is None:
        return False
    child.terminate()
    child.join(wait_s)
    if child.is_alive():
        child.kill()
        child.join()
    return True
