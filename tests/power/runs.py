"""Record what runs do, cut the power at every moment, and check what is left: for the tests, and for the soak."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from milepost.engine import provenance, relief
from milepost.store.posix import Posix
from milepost.testing.power import Cut, Note, Recorder, Tally, checked, chosen, cuts, record, replay
from tests.engine.training import with_logs
from tests.power.acts import AT_RANDOM, CASES, Case, Run, at_random
from tests.power.promises import acknowledged_by, check


def act_of(case: Case) -> Callable[[Path, Recorder], None]:
    def act(place: Path, recorder: Recorder) -> None:
        run = Run(place, recorder, case.wrap)
        for number in case.torn:
            recorder.note("torn", number=number)
        for number, step in case.given.items():
            recorder.note("acknowledged", number=number, step=step)
        case.act(run)

    return act


def case_of(name: str) -> Case:
    """Return one of `CASES`, or the life that the seed in ``at random 17`` chooses."""
    return Case(at_random(int(name.removeprefix(AT_RANDOM)))) if name.startswith(AT_RANDOM) else CASES[name]


def check_of(case: Case) -> Callable[[Cut, Path], None]:
    return lambda cut, place: check(cut, place, case.wrap)


@contextmanager
def small() -> Iterator[None]:
    """Spare each claim two child processes and the same look at what is installed, and each cut much that is all zeros.

    The states are small, too, but nothing is missing in them: they have logs in many pieces.
    """
    with ExitStack() as stack:
        stack.enter_context(with_logs())
        stack.enter_context(mock.patch.object(provenance, "git_commit", return_value=""))
        stack.enter_context(mock.patch.object(provenance, "versions", cache(provenance.versions)))
        stack.enter_context(mock.patch.object(relief, "BALLAST_BYTES", 16384))
        yield


def replay_run(name: str, seed: int = 0, limit: int | None = None, inner: Posix | None = None, **options: Any) -> Tally:
    """Record a case, cut the power at every moment, and hold what each cut leaves to what was promised; for tests and soak."""
    case = case_of(name)
    with small():
        return replay(
            act_of(case), check_of(case), prepare=case.prepare, inner=inner or case.inner(), seed=seed, limit=limit, **options
        )


def replay_run_twice(name: str, seed: int = 0, limit: int = 5, again: int = 10) -> Tally:
    """Cut the power, start again, and cut the power in the middle of that: ``limit`` times ``again`` cuts, chosen by seed."""

    def cut_again(cut: Cut, place: Path) -> None:
        nonlocal total
        told = [Note("acknowledged", {"number": number, "step": step}) for number, step in acknowledged_by(cut).items()]
        journal = place.parent / "journal-again"
        journal.unlink(missing_ok=True)
        records = record(place, journal, lambda place, recorder: Run(place, recorder, case.wrap).train(7, 8))
        for second in chosen(cuts(records, seed=seed, notes=(*cut.notes, *told)), seed, again):
            tally = checked(second, check_of(case), place.parent / "cut-again")
            assert not tally.lost, f"{cut}\n{tally.failures[0]}"
            total += tally

    total = Tally()
    case = case_of(name)
    with small():
        first = replay(act_of(case), cut_again, prepare=case.prepare, inner=case.inner(), seed=seed, limit=limit)
    return first + total


def replay_runs(least: int, seed: int = 0) -> Tally:
    """Replay every case, and go on with other seeds until at least so many cuts were checked: for the soak."""
    total = Tally()
    for again in itertools.count():
        for name in (*CASES, f"{AT_RANDOM}{seed + again}"):
            total += replay_run(name, seed + again, limit=-(-least // len(CASES)))
            total += replay_run_twice(name, seed + again, limit=1 + least // 2000)
        if total.cuts >= least or total.lost:
            return total
    raise AssertionError("unreachable")
