"""`make bench` from end to end, on benchmarks that take no time; no figure is asserted that a clock has made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import catalog
from bench.__main__ import BEFORE, main
from bench.goals import GOALS, Goal, judge
from bench.measure import Contender, Outcome, Row, Setting, interleave
from bench.report import BEGIN, END, amount, reached_by

TINY = {"tiny": "tests.bench.tiny:measure"}
MET = Goal("saving nothing", "tiny", "stall", "at most", 10, "a floor")
MISSED = Goal("saving nothing", "tiny", "stall", "at most", 9.9, "a floor")
LATER = Goal("saving less than nothing", "tiny", "stall", "at most", 1, "a floor", needs="a miracle")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # main() sets it


def run(out: Path, *arguments: str, goals: tuple[Goal, ...]) -> int:
    return main(["--out", str(out), *arguments], TINY, goals)


def test_a_run_prints_a_table_and_writes_json_markdown_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, goals=(MET, LATER)) == 0
    printed = capsys.readouterr().out
    assert re.search(r"stall +milepost +30 ms +10 ms +50 ms +10 ms +5$", printed, re.MULTILINE)
    assert "10 × this" in printed
    assert "not built yet (needs a miracle)" in printed
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["outcomes"][0]["rows"][0]["values"] == [0.001, 0.002, 0.003, 0.004, 0.005]
    assert [goal["verdict"] for goal in found["goals"]] == ["met", "not built yet"]
    assert "| stall | milepost | 30 ms |" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_what_an_earlier_run_reached_stands_beside_what_is_reached_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, goals=(MET,))
    kept = tmp_path / "bench.json"
    kept.write_text(kept.read_text().replace('"reached": 10.0', '"reached": 25.0'))
    run(tmp_path, "--before", str(kept), goals=(MET, LATER))
    assert re.search(r"saving nothing \[tiny\] +a floor +≤ 10 × +25 × +10 × +met", capsys.readouterr().out)
    run(tmp_path, "--before", str(tmp_path / "nowhere.json"), goals=(MET,))
    assert re.search(r"saving nothing \[tiny\] +a floor +≤ 10 × +10 × +met", capsys.readouterr().out)


def test_the_figures_from_before_are_of_goals_that_are_still_there() -> None:
    known = {(goal.benchmark, goal.quantity, goal.of, goal.against) for goal in GOALS}
    assert len(reached_by(BEFORE)) >= 15
    assert reached_by(BEFORE).keys() <= known


def test_a_missed_goal_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, goals=(MET, MISSED)) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_goal_that_needs_what_is_not_built_does_not_count(tmp_path: Path) -> None:
    assert run(tmp_path, goals=(LATER,)) == 0


def test_a_goal_whose_figure_is_gone_is_missed(tmp_path: Path) -> None:
    assert run(tmp_path, goals=(Goal("renamed", "tiny", "stalled", "at most", 10, "a floor"),)) == 1
    assert run(tmp_path, goals=(Goal("renamed", "tiny", "stall", "at most", 10, "the floor"),)) == 1


def test_only_the_goals_of_the_benchmarks_that_were_named_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Goal("something else", "other", "stall", "at most", 1, "a floor")
    assert run(tmp_path, "tiny", goals=(MET, other)) == 0
    assert "something else" not in capsys.readouterr().out
    assert run(tmp_path, goals=(MET, other)) == 0
    assert "not run" in capsys.readouterr().out


def test_a_benchmark_that_does_not_exist_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "tyni", goals=()) == 2
    assert "there are tiny" in capsys.readouterr().err


def test_a_benchmark_that_fails_is_exit_code_1_and_the_figures_of_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"broken": "tests.bench.tiny:broken", **TINY}
    assert main(["--out", str(tmp_path)], both, (MET,)) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert "| stall | milepost | 30 ms |" in (tmp_path / "bench.md").read_text()


def test_what_a_benchmark_leaves_is_removed(tmp_path: Path) -> None:
    run(tmp_path, "--json", str(tmp_path / "other.json"), goals=())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.md", "bench.png", "other.json"]


def test_the_marked_place_of_a_page_is_filled_anew_each_time(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        run(tmp_path / "out", "--page", str(page), goals=(MET,))
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\n![")
        assert text.endswith(f"{END}\nafter\n")
        assert text.count("### goals") == 1
        assert "old" not in text
    assert (tmp_path / "bench.png").exists()


def test_a_page_without_a_marked_place_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing to fill\n")
    with pytest.raises(ValueError, match=r"page\.md needs the two lines"):
        run(tmp_path / "out", "--page", str(page), goals=())
    assert page.read_text() == "nothing to fill\n"


def test_the_page_that_make_fills_has_its_place() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1


@pytest.mark.parametrize(
    ("test", "bound", "ours", "theirs", "verdict", "reached"),
    [
        ("at most", 1.3, 1.3, 1.0, "met", 1.3),
        ("at most", 1.3, 1.4, 1.0, "MISSED", 1.4),
        ("times less", 7, 1.0, 7.0, "met", 7.0),
        ("times less", 7, 1.0, 6.9, "MISSED", 6.9),
        ("below", 0.15, 0.15, 0.0, "met", 0.15),
        ("below", 0.15, 0.16, 0.0, "MISSED", 0.16),
        ("at most", 1.3, 1.0, 0.0, "MISSED", None),
    ],
)
def test_a_goal_is_judged_by_medians(test, bound, ours, theirs, verdict, reached) -> None:
    rows = (Row("milepost", "milepost", "stall", (0.0, ours, 99.0)), Row("other", "peer", "stall", (theirs,)))
    goal = Goal("an operation", "one", "stall", test, bound, "" if test == "below" else "other")
    [judged] = judge([goal], {"one": Outcome("one", "", rows)})
    assert (judged.verdict, judged.reached) == (verdict, reached)


def test_every_goal_has_its_benchmark_or_says_what_it_waits_for() -> None:
    assert {goal.benchmark for goal in GOALS if not goal.needs} <= catalog.BENCHMARKS.keys()


@pytest.mark.parametrize("where", catalog.BENCHMARKS.values())
def test_every_benchmark_can_be_loaded(where: str) -> None:
    assert callable(catalog.load(where))


def order_of(seed: int, rounds: int, budget_s: float, tmp_path: Path) -> list[str]:
    ran: list[str] = []

    def contender(name: str) -> Contender:
        def sample() -> dict[str, float]:
            ran.append(name)
            return {"stall": 1.0}

        return Contender(name, "peer", sample)

    setting = Setting(tmp_path, seed=seed)
    interleave([contender(name) for name in "abcd"], setting, rounds=rounds, budget_s=budget_s, settle=lambda: None)
    return ran


def test_each_round_runs_every_contender_once_in_an_order_that_the_seed_decides(tmp_path: Path) -> None:
    ran = order_of(1, 20, 60, tmp_path)
    rounds = ["".join(ran[at : at + 4]) for at in range(0, 80, 4)]
    assert {"".join(sorted(one)) for one in rounds} == {"abcd"}
    assert len(set(rounds)) > 5
    assert order_of(1, 20, 60, tmp_path) == ran
    assert order_of(2, 20, 60, tmp_path) != ran


def test_a_slow_contender_does_three_rounds_and_sits_out_the_rest(tmp_path: Path) -> None:
    assert len(order_of(1, 20, 0, tmp_path)) == 12


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0021, "s", "2.1 ms"), (1.234, "s", "1.23 s"), (-0.06, "s/GB", "-60 ms/GB"), (1e9, "bytes", "1 GB"), (0, "bytes", "0 B")],
)
def test_a_figure_has_a_unit_of_its_size(value, unit, text) -> None:
    assert amount(value, unit) == text
