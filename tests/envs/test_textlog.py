"""A log file is carried over byte for byte, and writing goes on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.envs.textlog import CHUNK_BYTES, read_log, rewrite_log


@pytest.mark.parametrize("mode", ["w", "a", "w+"])
def test_a_rewritten_log_goes_on_behind_the_saved_bytes(mode: str, tmp_path: Path) -> None:
    saved = "a,b\n" + "1,2\n" * (CHUNK_BYTES // 4) + "é\n"
    (tmp_path / "old").write_text(saved, encoding="utf-8")
    with open(tmp_path / "old", "a") as old:
        chunks = read_log(old)
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, 7]
    with open(tmp_path / "new", mode, encoding="utf-8") as new:
        new.write("what a restarted script wrote, longer than nothing\n")
        rewrite_log(new, chunks)
        new.write("next\n")
    assert (tmp_path / "new").read_text(encoding="utf-8") == saved + "next\n"


def test_a_closed_or_removed_log_is_left_alone(tmp_path: Path) -> None:
    with open(tmp_path / "gone", "w") as gone:
        (tmp_path / "gone").unlink()
        assert read_log(gone) == []
    assert read_log(gone) == []
    rewrite_log(gone, [b"x"])
    assert not (tmp_path / "gone").exists()
