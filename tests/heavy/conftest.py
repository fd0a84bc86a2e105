"""These tests need what is too heavy for the environment of the others; `make test-all` makes one for them, in .venvs."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [
    *([] if find_spec("transformers") and find_spec("peft") else ["hf"]),
    *([] if find_spec("mooncake") else ["transfer"]),
]
