"""Measure, print a table, write JSON, Markdown and a picture, and exit with 1 if a goal was missed; ``make bench``.

Names choose benchmarks; without any all of them run. ``trainer`` stands for all that concern trainers of several ranks,
``service`` for all of the checkpoint service.
``--quick`` takes smaller states and fewer rounds: a look, and no result. Figures are worth something on a machine that does
nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import catalog, machine
from bench.goals import GOALS, Goal, judge, missed
from bench.measure import Outcome, Setting, quiet
from bench.picture import draw
from bench.report import Report, fill, reached_by

PICTURE = "bench.png"
BEFORE = Path(__file__).with_name("before.json")
"""What was reached before saving cost what changed."""


def main(
    argv: Sequence[str] | None = None, benchmarks: Mapping[str, str] = catalog.BENCHMARKS, goals: Sequence[Goal] = GOALS
) -> int:
    """Run the benchmarks asked for and return the exit code."""
    asked = _parser(benchmarks).parse_args(argv)
    asked.names = [one for name in asked.names for one in catalog.GROUPS.get(name, (name,))]
    unknown = [name for name in asked.names if name not in benchmarks]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    quiet()
    asked.out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(asked.out)
    outcomes = {name: _run(name, benchmarks[name], asked) for name in asked.names or benchmarks}
    judged = judge(_asked_for(goals, outcomes, asked), outcomes)
    report = Report(facts, list(outcomes.values()), judged, reached_by(asked.before))
    print(f"\n{report.text()}")
    _write(report, asked)
    return 1 if missed(report.judged) or not all(outcome.rows for outcome in outcomes.values()) else 0


def _parser(benchmarks: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*benchmarks, *catalog.GROUPS]))
    parser.add_argument("--quick", action="store_true", help="smaller states, fewer rounds: within 90 seconds")
    parser.add_argument("--rounds", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--seed", type=int, default=0, help="of the order within the rounds")
    parser.add_argument("--out", type=Path, default=Path(".bench"), help="where results go and states are saved: choose the disk")
    parser.add_argument("--before", type=Path, default=BEFORE, help="the JSON of an earlier run, whose figures are shown beside")
    parser.add_argument("--json", type=Path, help="where the JSON goes, instead of bench.json in OUT")
    parser.add_argument("--page", type=Path, help="a Markdown page whose marked place is filled, its picture beside it")
    return parser


def _asked_for(goals: Sequence[Goal], outcomes: Mapping[str, Outcome], asked: argparse.Namespace) -> list[Goal]:
    """Return all goals, or those of the benchmarks that were named."""
    return [goal for goal in goals if not asked.names or goal.benchmark in outcomes]


def _run(name: str, where: str, asked: argparse.Namespace) -> Outcome:
    place = Path(tempfile.mkdtemp(prefix="data-", dir=asked.out)).resolve()
    started = time.perf_counter()
    print(f"{name} ...", end=" ", flush=True)
    try:
        outcome = catalog.load(where)(Setting(place, asked.quick, asked.rounds, asked.seed))
    except Exception as error:  # noqa: BLE001 - told and counted as missed; the figures of the others are kept
        traceback.print_exc()
        outcome = Outcome(name, "it failed", (), (f"{type(error).__name__}: {error}",))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{time.perf_counter() - started:.0f} s", flush=True)
    return outcome


def _write(report: Report, asked: argparse.Namespace) -> None:
    (asked.json or asked.out / "bench.json").write_text(report.json(), encoding="utf-8")
    (asked.out / "bench.md").write_text(report.markdown(), encoding="utf-8")
    draw(report, asked.out / PICTURE)
    if asked.page is not None:
        fill(asked.page, report, PICTURE)
        shutil.copyfile(asked.out / PICTURE, asked.page.parent / PICTURE)


if __name__ == "__main__":
    sys.exit(main())
