"""What `commit` promised holds, wherever the service, the trainer, both, or the whole host is killed. C1, C2, C4, C13, C14"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.at_length import AT_LENGTH
from tests.service.durability.campaign import Setting, told_of
from tests.service.durability.plans import CONNECTED, MEMORY, TO_DISK, every_point


@pytest.fixture
def place() -> Iterator[Path]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(prefix="milepost-durability-", dir=memory) as home:
        yield Path(home) / "story"


@pytest.mark.slow
@pytest.mark.parametrize("setting", [MEMORY, CONNECTED, TO_DISK], ids=lambda setting: setting.name)
def test_what_was_promised_holds_whatever_is_killed_at_every_point(place: Path, setting: Setting) -> None:
    """A real service, trainer and sampler, and up to half a second for each of sixty strikes."""
    turns = list(every_point(setting, twice=AT_LENGTH))
    told = told_of(place, setting, turns)
    assert told.lost == []
    assert told.missed == []
    assert told.strikes == len(turns)
    assert told.durable > 3
    assert told.fetched > 3
