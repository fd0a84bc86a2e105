"""Import once what every child of these tests needs."""

from __future__ import annotations

import pytest

from exactness.__main__ import warm


@pytest.fixture(autouse=True, scope="session")
def _warm() -> None:
    warm()
