"""Let a model's logs go on where the checkpoint stands: pending values, log files, the TensorBoard directory."""

from __future__ import annotations

import os
from typing import Any

from stable_baselines3.common.logger import CSVOutputFormat, HumanOutputFormat, JSONOutputFormat, Logger, TensorBoardOutputFormat

from milepost.envs.plain import ABSENT, Recorder, Refiller
from milepost.envs.textlog import read_log, rewrite_log

_PENDING = ("name_to_value", "name_to_count", "name_to_excluded", "level")


def capture_logger(logger: Logger, recorder: Recorder, path: str) -> dict[str, Any]:
    """Return the values not yet dumped, the log files' bytes and the directory's own name."""
    pending = {name: recorder.value(getattr(logger, name), f"{path}.{name}") for name in _PENDING}
    return {
        "pending": {name: value for name, value in pending.items() if value is not ABSENT},
        "outputs": [_capture_output(output) for output in logger.output_formats],
        "directory": os.path.basename(os.path.normpath(logger.dir)) if logger.dir else None,
    }


def restore_logger(logger: Logger, saved: dict[str, Any], refiller: Refiller, step: int, path: str) -> None:
    """Bring the logger back in place; events of steps after ``step`` are purged, since they will be made again."""
    refiller.attributes(logger, saved["pending"], path)
    for output, state in zip(logger.output_formats, saved["outputs"], strict=False):
        if state["class"] != type(output).__name__:
            continue
        if isinstance(output, TensorBoardOutputFormat):
            _reopen(logger, output, saved["directory"], step)
        elif state["text"] is not None and (handle := _own_file(output)) is not None:
            rewrite_log(handle, state["text"])
            vars(output).update(state["attributes"])


def _capture_output(output: Any) -> dict[str, Any]:
    handle = _own_file(output)
    attributes = {"keys": list(output.keys)} if isinstance(output, CSVOutputFormat) else {}
    return {"class": type(output).__name__, "text": None if handle is None else read_log(handle), "attributes": attributes}


def _own_file(output: Any) -> Any:
    if isinstance(output, (JSONOutputFormat, CSVOutputFormat)) or (isinstance(output, HumanOutputFormat) and output.own_file):
        return output.file
    return None


def _reopen(logger: Logger, output: TensorBoardOutputFormat, name: str | None, step: int) -> None:
    """Turn the live writer to the saved run's directory.

    ``learn()`` has just opened a new directory, ``PPO_2``, beside the ``PPO_1`` of the run that goes on. The writer
    makes its next event file lazily, so a finished run that starts again leaves no file behind.
    """
    opened = os.path.normpath(output.writer.log_dir)
    target = os.path.join(os.path.dirname(opened), name) if name else opened
    if not os.path.isdir(target):
        # Somebody removed the saved run's events: the new directory is as good as any.
        return
    writers: dict[str, Any] = output.writer.all_writers or {}
    files = [writer.event_writer._file_name for writer in writers.values()]
    output.writer.close()
    if os.path.abspath(target) != os.path.abspath(opened):
        _remove(opened, files)
    # Events of `step` itself were written before this boundary was reached, and are not made again.
    output.writer.log_dir, output.writer.purge_step = target, step + 1
    logger.dir = target


def _remove(directory: str, files: list[str]) -> None:
    """Remove a directory that holds nothing but the event file this process has just opened in it."""
    if {os.path.join(directory, name) for name in os.listdir(directory)} == set(map(os.path.normpath, files)):
        for file in files:
            os.remove(file)
        os.rmdir(directory)
