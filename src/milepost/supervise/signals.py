"""Listen for what is to end this process, for an engine: signals, a platform's notice, a limit, SLURM's end time.

Signals belong to a process and not to a library, so all engines of a process share one `Lookout`: the handlers are there once,
from the first engine that listens until the last that does is closed. Each engine is told, and each has its own grace period.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Mapping
from typing import Protocol

from milepost.clock import Clock, SystemClock
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.stopping import GRACE_S, Stop, StopBy
from milepost.supervise import children, dispositions
from milepost.supervise.lookout import Listening, Lookout
