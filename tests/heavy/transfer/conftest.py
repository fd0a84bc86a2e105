from __future__ import annotations

import os

os.environ["MC_TRANSFER_TIMEOUT"] = "5"  # the least that the engine takes
