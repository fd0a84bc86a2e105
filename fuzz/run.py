"""Fuzz one target with atheris: ``python fuzz/run.py TARGET SECONDS``. Exits non-zero on a finding.

New inputs that reach new code are kept in ``.fuzz/TARGET``; what is worth keeping for good is copied into ``fuzz/corpus``,
which the tests replay.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

with atheris.instrument_imports(include=["milepost", "json"]):
    from fuzz.targets import TARGETS


def main(target: str, seconds: str, *more: str) -> None:
    """Run ``target`` for so many seconds."""
    found, kept = HERE.parent / ".fuzz" / target, HERE / "corpus" / target
    logging.getLogger("milepost").setLevel(logging.CRITICAL)
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        "-timeout=30",
        "-rss_limit_mb=3072",
        "-max_len=8192",
        "-len_control=0",
        "-print_final_stats=1",
    ]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={found.parent}/{target}-", *more, str(found), str(kept)], TARGETS[target]
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
