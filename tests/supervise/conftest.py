"""Start each test as a process would that has no children: other tests may have left some, a fork server say."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from milepost.supervise.group import LEADERS, processes


@pytest.fixture(autouse=True)
def _children_of_other_tests_are_strangers() -> Iterator[None]:
    there = {each.pid for each in processes().values() if each.parent == os.getpid()} - LEADERS
    LEADERS.update(there)
    yield
    LEADERS.difference_update(there)
