"""What is taken over here has logs in its state, in many pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.training import with_logs


@pytest.fixture(autouse=True)
def _with_logs() -> Iterator[None]:
    with with_logs():
        yield
