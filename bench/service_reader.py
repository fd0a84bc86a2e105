"""Be one reader of many: fetch the newest version each time a line says so, and answer when it was here, and its bytes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from milepost.service import connect


def main() -> None:
    """Read from a service, ``service ROOT NAME TRANSPORT``; or from a file, ``file PATH``."""
    if sys.argv[1] == "file":
        _answer(lambda: torch.load(Path(sys.argv[2]), weights_only=True))
        return
    _, _, root, name, transport = sys.argv
    with connect(root, component=name, role="sampler", transport=transport) as client:

        def fetch() -> object:
            weights = client.fetch(timeout=60, has=None)
            assert weights is not None
            return weights.tensors()

        _answer(fetch)


def _answer(fetch: object) -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        held = fetch()  # type: ignore[operator]
        print(time.monotonic(), len(held), flush=True)
        del held


if __name__ == "__main__":
    main()
