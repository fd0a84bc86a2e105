from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # whoever asks for the real hub is told no
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"
