"""Be what listens in one process, for all of its engines: hand on what was heard, keep the deadlines, and end the process that
its training thread cannot end in time.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from milepost.clock import Clock
from milepost.errors import MilepostError
from milepost.lifecycle.stopping import EXIT_CODE, StopBy
from milepost.supervise.dispositions import TWICE_NS, Dispositions
from milepost.supervise.leaving import end_process
from milepost.supervise.notice_watch import NoticeWatch
from milepost.supervise.notices import Notice

log = logging.getLogger("milepost")

EVERY_S = 5.0
"""How often notices are looked for, and whether somebody else has come to handle a signal."""
CTRL_C_CODE = 130
_SHORT_S = 0.05
_MOST_MARGIN_S = 1.0
