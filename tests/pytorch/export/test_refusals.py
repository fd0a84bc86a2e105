"""What no reader of the format could open is refused at once, also where the export would be written beside training. A1"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from milepost.errors import UsageError
from milepost.publish import layout
from milepost.pytorch import Contents, Saver
from tests.pytorch.export.made import contents, step, value_of

W = torch.ones(3)


def saver(place: Path, **settings: Any) -> Saver:
    return Saver(place, **{"user": "me", "experiment": "e", "trial": "t", **settings})


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        ({"__metadata__": W, "w": W}, "bad-name"),
        ({"w\udcff": W}, "bad-name"),
        ({"w": torch.zeros(3, dtype=torch.complex128)}, "bad-dtype"),
        ({"w": torch.eye(3).to_sparse()}, "bad-model"),
        ({"w": torch.empty(3, device="meta")}, "bad-model"),
        ({"w": [1.0]}, "bad-model"),
    ],
)
def test_a_tensor_that_cannot_lie_in_a_file_is_refused_before_anything_is_made(
    mode: str, tensors: Any, kind: str, tmp_path: Path
) -> None:
    with saver(tmp_path, mode=mode) as exporter:
        with pytest.raises(UsageError) as caught:
            exporter.save(Contents(tensors), step(0))
        assert caught.value.kind == kind
        assert caught.value.hint
        assert not list(tmp_path.rglob("*epoch*"))
        path = exporter.save(contents(1.0), step(1))
    assert value_of(path) == 1.0


def test_no_engine_has_the_name_of_a_file_or_directory_of_a_run_root(tmp_path: Path) -> None:
    names = [layout.RUN, layout.PROGRESS, layout.LATEST, layout.BALLAST, layout.LOCK, layout.LEASE, layout.SCRUB]
    with saver(tmp_path) as exporter:
        for name in [*names, *(each.rstrip("/") for each in (*layout.DIRECTORIES, layout.ASIDE))]:
            with pytest.raises(UsageError, match="taken in a run root"):
                exporter.path(step(0), engine=name)
