"""The list of invariants names code and tests that exist, and every rule that the code cites."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "INVARIANTS.md").read_text(encoding="utf-8")


def test_every_function_that_keeps_a_rule_exists() -> None:
    for name in set(re.findall(r"`(milepost(?:\.\w+)+)`", PAGE)) - {"milepost.json"}:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_test_that_attacks_a_rule_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert named - there == set()


def test_every_rule_that_is_built_is_attacked() -> None:
    rows = re.findall(r"^\| (\d+\S*).*\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) > 25
    assert [rule for rule, tests in rows if "`test_" not in tests and rule != "22–25"] == []


def test_every_rule_that_the_code_cites_is_on_the_list() -> None:
    listed = set(re.findall(r"^\| (\d+a?)", PAGE, re.MULTILINE)) | {"22", "23", "24", "25", "26a", "26b"}
    cited = {
        number
        for path in (ROOT / "src").rglob("*.py")
        for text in re.findall(r"\brules? ((?:\d+[ab]?(?:, | and | to )?)+)", path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+[ab]?", text)
    }
    assert cited - listed == set()
    assert {str(rule) for rule in range(1, 22)} - listed == set()
