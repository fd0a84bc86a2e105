"""Run the matrix and the leave-one-out test, print tables, write JSON and a page; exit with 1 on a mismatch; ``make exactness``.

``--subset`` takes the few cells that also run with the tests. Words choose the cells in whose names they stand.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from bench import machine
from exactness import forgetting
from exactness.axes import Cell, cells, subset
from exactness.forgetting import Forgot
from exactness.judge import BAD, FAILED, Verdict, judge
from exactness.report import Report, fill

PACKAGES = ("milepost", "stable-baselines3", "sb3-contrib", "gymnasium", "torch", "numpy", "mujoco", "ale-py", "Box2D")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    asked = _parser().parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(asked.out, PACKAGES)
    chosen = [cell for cell in (subset() if asked.subset else cells()) if all(word in str(cell) for word in asked.words)]
    started = time.perf_counter()
    verdicts = list(_judged(chosen, asked))
    forgot = [] if asked.words else list(_forgotten(asked))
    report = Report({**facts, "took": f"{(time.perf_counter() - started) / 60:.0f} minutes"}, verdicts, forgot)
    print(f"\n{report.text()}")
    (asked.json or asked.out / "exactness.json").write_text(report.json(), encoding="utf-8")
    if asked.page is not None:
        fill(asked.page, report)
    return 1 if report.bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exactness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only cells in whose names all of these stand")
    parser.add_argument("--subset", action="store_true", help="the cells that run with the tests: under 3 minutes")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="cells at once; each takes one core")
    parser.add_argument("--out", type=Path, default=Path(".exactness"), help="where runs lie while they are judged")
    parser.add_argument("--json", type=Path, help="where the JSON goes, instead of exactness.json in OUT")
    parser.add_argument("--page", type=Path, help="a Markdown page whose marked place is filled")
    return parser


def _judged(chosen: Sequence[Cell], asked: argparse.Namespace) -> Iterator[Verdict]:
    """Yield the verdicts in the order of the cells; say each as it comes."""
    warm()
    found: dict[Cell, Verdict] = {}
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("fork")) as pool:
        asking = {pool.submit(judge, cell, asked.out.resolve()): cell for cell in chosen}
        for count, future in enumerate(as_completed(asking), 1):
            cell = asking[future]
            try:
                found[cell] = future.result()
            except Exception as error:  # noqa: BLE001 - told and counted as failed; the other cells are judged
                traceback.print_exc()
                found[cell] = Verdict(cell, FAILED, f"{type(error).__name__}: {error}")
            one = found[cell]
            told = f": {one.detail}" if one.outcome in BAD else ""
            print(f"{count}/{len(chosen)}  {one.seconds:5.1f} s  {cell}  {one.outcome}{told}", flush=True)
    yield from (found[cell] for cell in chosen)


def _forgotten(asked: argparse.Namespace) -> Iterator[Forgot]:
    for name in forgetting.QUICK if asked.subset else forgetting.RUNS:
        started = time.perf_counter()
        found = forgetting.forget_each(name)
        print(f"{time.perf_counter() - started:5.1f} s  without each of {len(found.items)} items: {name}", flush=True)
        yield found


def warm() -> None:
    """Import once what every run needs: its children are copies of this process."""
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).step()  # imports half of torch


if __name__ == "__main__":
    sys.exit(main())
