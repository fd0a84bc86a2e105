"""Save and load through ``torch.distributed.checkpoint``: its planners, milepost's generations. See docs/distributed.md."""

from milepost.pytorch.dcp.holding import give_up
from milepost.pytorch.dcp.process import end_process
from milepost.pytorch.dcp.reader import RunReader
from milepost.pytorch.dcp.together import as_error, load, save
from milepost.pytorch.dcp.writer import RunWriter, Saved

__all__ = ["RunReader", "RunWriter", "Saved", "as_error", "end_process", "give_up", "load", "save"]
