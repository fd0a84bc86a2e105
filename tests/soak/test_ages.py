"""A process that saves and resumes for a long time does not grow (invariant 114); `make soak` lets it live for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.ages import aged, grown, writers

NOISE_BYTES = 1 << 20


@pytest.mark.parametrize("writer", writers())
def test_memory_files_threads_and_children_stay_as_they_are_over_saves_failures_and_resumes(tmp_path: Path, writer: str) -> None:
    found = aged(tmp_path, 80, writer)
    assert found["saved"] >= 70
    assert found["resumed"] >= 14
    assert writer == "process" or found["failed"] >= 8
    assert grown(found["looks"], noise_bytes=NOISE_BYTES) == []


def look(number: int, **other: int) -> dict[str, int]:
    return {"resident_bytes": 1 << 28, "files": 9, "threads": 2, "children": 0, "mappings": 300, **other, "number": number}


@pytest.mark.parametrize("what", ["files", "threads", "children", "resident_bytes", "mappings"])
def test_what_grows_is_told(what: str) -> None:
    step = NOISE_BYTES if what == "resident_bytes" else 2
    growing = [look(n, **{what: (1 << 28) + n * step}) for n in range(8)]
    assert [says.partition(":")[0] for says in grown(growing, noise_bytes=NOISE_BYTES)] == [what]
    assert grown([look(n) for n in range(8)], noise_bytes=NOISE_BYTES) == []
