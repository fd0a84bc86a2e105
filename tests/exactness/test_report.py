"""The page says of every cell what came of it; what differs, failed, or could not be run is never left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exactness.axes import Cell
from exactness.forgetting import Forgot, Item
from exactness.judge import DIFFERS, EXACT, NOT_RUN, TOLD, Verdict
from exactness.report import BEGIN, END, Report, fill

FINE = (
    Verdict(Cell("PPO", "CartPole"), EXACT, kills=2, resumes=2, seconds=1.0),
    Verdict(Cell("PPO", "CartPole", kill="during a save"), EXACT, kills=2, resumes=2),
    Verdict(Cell("PPO", "nobody's"), TOLD, "nobody knows | its state", kills=2, resumes=2),
    Verdict(Cell("TQC", "Ant"), NOT_RUN, "needs mujoco"),
)
WRONG = Verdict(Cell("DQN", "CartPole"), DIFFERS, "buffer/pos: 3 and 4", kills=2, resumes=2)
FORGOT = Forgot("PPO", (Item("policy/w", "training"), Item("counters/n", "logs", listed="counters/*", reason="for logs")))


def test_a_report_is_bad_if_a_cell_differs_or_an_item_is_not_as_the_list_says() -> None:
    assert not Report({}, FINE, [FORGOT]).bad
    assert Report({}, (*FINE, WRONG)).bad
    assert Report({}, FINE, [Forgot("PPO", (), ("x: not on the list",))]).bad


def test_every_cell_and_every_reason_is_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Head\n{BEGIN}\nwhat was there\n{END}\ntail\n")
    fill(page, Report({"date": "today"}, (*FINE, WRONG), [FORGOT]))
    text = page.read_text()
    assert text.startswith("# Head\n")
    assert text.endswith("tail\n")
    assert "what was there" not in text
    for wanted in (
        "date: today",
        "5 cells: 2 exact, 1 not exact, and says so, 1 not run, 1 differs; killed 8 times, resumed 8 times",
        "| PPO | = 2 |  | no |",
        "| TQC |  | ? |  |",
        "| DQN | **differs** |  |  |",
        "| PPO / nobody's / DummyVecEnv x1 / mid-rollout / inline | not exact, and says so | nobody knows \\| its state |",
        "needs mujoco",
        "DIFFERS: buffer/pos: 3 and 4",
        "| PPO | 2 | 1 | 1 | 0 |",
        "| `counters/*` | logs | for logs |",
    ):
        assert wanted in text, wanted


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Head\n")
    with pytest.raises(ValueError, match="needs the two lines"):
        fill(page, Report({}, FINE))


def test_the_json_holds_everything() -> None:
    found = json.loads(Report({"cores": "2"}, FINE, [FORGOT]).json())
    assert [cell["outcome"] for cell in found["cells"]] == [EXACT, EXACT, TOLD, NOT_RUN]
    assert found["left out"][0]["items"][1]["reason"] == "for logs"
