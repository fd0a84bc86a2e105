"""Numbers are looked at beside the writing of them, and nothing reads them any more when that is over."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from milepost.engine import scan
from milepost.engine.scan import Scan
from milepost.lifecycle.health import Numbers

HANG_S = 60.0


def test_a_ctrl_c_is_told_when_nobody_reads_the_callers_memory_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, looked, struck, join = threading.Event(), list[int](), list[int](), threading.Thread.join

    def look(*_: Any) -> list[str]:
        assert gate.wait(HANG_S)
        looked.append(1)
        return []

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "milepost-scan" and not struck:
            struck.append(1)
            raise KeyboardInterrupt
        gate.set()
        join(self, timeout)

    monkeypatch.setattr(scan, "nonfinite", look)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt), Scan(memoryview(b""), [Numbers("w", "<f4", 0, 8 << 20)], []):
        pass
    gate.set()
    assert looked == [1]
