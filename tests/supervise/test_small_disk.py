"""A disk that `milepost drill diskfull` fills is full, or the drill says why not. C17"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from milepost.errors import StoreError
from milepost.supervise.small_disk import GivenDisk


def test_a_disk_that_another_limit_keeps_from_being_full_is_not_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    disk, before = GivenDisk(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StoreError) as caught:
            disk.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.kind == "not-filled"
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    disk.close()
    assert not [*tmp_path.iterdir()]
