"""Every block of the page about exports runs, but for the one that would upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_code_blocks import FENCE, ROOT


def test_the_page_about_exports_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    blocks = [match["body"] for match in FENCE.finditer(text) if match["language"] == "python"]
    assert len(blocks) == 3
    for block in blocks:
        if "Upload(" not in block:
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(block, "docs/exports.md", "exec", dont_inherit=True), names)
