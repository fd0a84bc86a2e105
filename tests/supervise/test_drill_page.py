"""The page of a drill: whole in itself, well-formed, in light and dark, and hostile names are text. B11"""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

from milepost.supervise.drill import Request, Verdict
from milepost.supervise.drill_judge import Bounds, Drilled
from milepost.supervise.drill_measure import Mark
from milepost.supervise.drill_page import page

HOSTILE = "<script>alert(1)</script>\"'&\x1b]0;x\x07\u202e</title>"
MARKS = (
    Mark("start", 0.0),
    Mark("training", 0.4),
    Mark("saved", 0.8, 10),
    Mark("struck", 1.2, 13),
    Mark("start", 1.2),
    Mark("resumed", 1.8),
    Mark("trained", 1.9),
    Mark("caught up", 2.1),
    Mark("ended", 3.0),
)
RUN = dataclasses.replace(
    Drilled(1, struck=True, kind="recovered", what="killed", at_s=1.2, step=13, from_step=10, end="identical"),
    rpo_steps=3,
    rpo_s=0.4,
    rto_s=0.7,
    marks=MARKS,
)


def verdict(*runs: Drilled, outcome: str = "recovered", command: tuple[str, ...] = ("python", "train.py")) -> Verdict:
    request = Request("kill9", command, bounds=Bounds(rto_s=2.0, rpo_steps=10))
    return Verdict(outcome, "recovered", request, (), runs, 2.0, 40)  # type: ignore[arg-type]


def svgs(text: str) -> list[xml.etree.ElementTree.Element]:
    return [xml.etree.ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_every_run_has_a_lane_with_what_happened_in_it() -> None:
    runs = (RUN, Drilled(2, struck=False, kind="ended-before"), Drilled(3, struck=True, kind="x", what="killed", at_s=1.0))
    lanes, legend, rto, rpo = svgs(page(verdict(*runs), ["head"], ["fact"]))
    kinds = {each.get("class") for each in lanes.iter()}
    assert kinds >= {"starting", "run", "down", "again", "on", "save", "strike"}
    assert [each.text for each in lanes.iter() if each.text and each.text.startswith("run ")] == ["run 1", "run 3"]
    assert all(each.get("aria-label") for each in (lanes, legend, rto, rpo))
    assert len([each for each in rto.iter() if each.get("class") == "dot"]) == 1
    assert [each.text for each in rpo.iter() if each.text and "bound" in each.text] == ["bound 10"]


def test_the_page_needs_nothing_from_anywhere_and_has_both_colour_schemes() -> None:
    text = page(verdict(RUN), ["head"], ["fact"])
    assert not re.findall(r"\bsrc=|\bhref|@import|\burl\(", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("where", ["command", "what", "problems", "head"])
def test_hostile_names_are_text(where: str) -> None:
    run = RUN
    if where in ("what", "problems"):
        run = dataclasses.replace(RUN, **{where: HOSTILE if where == "what" else (HOSTILE,)})
    command = (HOSTILE,) if where == "command" else ("python",)
    text = page(verdict(run, command=command), [HOSTILE] if where == "head" else [], [])
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("</title>") == text.count("<title>")
    assert "&lt;script&gt;" in text
    svgs(text)


def test_what_could_not_be_measured_or_struck_has_a_page_too(tmp_path: Path) -> None:
    nothing = Drilled(1, struck=True, kind="not-recovered", what="killed", end="not reached", problems=("it began anew",))
    text = page(verdict(nothing, outcome="missed its bounds"), [], [])
    assert "It could not be measured." in text
    assert 'class="bad"' in text
    svgs(text)
    assert "Runs</h2>" not in page(verdict(outcome="nothing proven"), ["NOTHING PROVEN"], [])


def test_the_title_says_what_was_missed() -> None:
    differs = dataclasses.replace(verdict(RUN, outcome="missed its bounds"), kind="end-differs")
    assert '<h1>milepost drill kill9: <span class="bad">the end differs</span></h1>' in page(differs, [], [])
    bound = dataclasses.replace(differs, kind="bound")
    assert "missed its bounds</span></h1>" in page(bound, [], [])
