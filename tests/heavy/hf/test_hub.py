"""The Hub's own client uploads finished exports to a server on this machine; nothing leaves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from milepost.pytorch import Saver, Upload
from milepost.pytorch.export import uploading
from tests.heavy.hf.hub import serving
from tests.heavy.hf.models import model_of
from tests.heavy.hf.test_models import files_of
from tests.pytorch.export.made import step

HANG_S = 60


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client speak to the server here, whatever the process was told before."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(uploading, "_FIRST_WAIT_S", 0.001)


def saver(place: Path, address: str, **settings: Any) -> Saver:
    upload = Upload("me/policy", client=HfApi(endpoint=address, token="hf_none"), tries=3, close_wait_s=HANG_S)
    return Saver(place, user="me", experiment="e", trial="t", upload=upload, **settings)


def test_the_hub_has_the_files_of_the_newest_export_and_no_others(tmp_path: Path) -> None:
    with serving() as (hub, address):
        for number, limit in enumerate(("40K", "5G")):
            with saver(tmp_path, address, max_shard=limit) as exporter:
                path = exporter.save(model_of("dense", number), step(number))
            assert exporter.upload_failure == "", hub.asked
            assert {name: data for name, data in hub.files.items() if name != ".gitattributes"} == files_of(path)
            assert hub.messages[-1] == f"e/t default {os.path.basename(path)}"


def test_a_hub_that_fails_is_asked_again(tmp_path: Path) -> None:
    with serving() as (hub, address):
        hub.failures = 2
        with saver(tmp_path, address) as exporter:
            path = exporter.save(model_of("dense"), step(0))
        assert exporter.uploaded == path
        assert sum("/commit/" in asked for asked in hub.asked) == 3
        assert hub.files == files_of(path)


def test_a_hub_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    with serving() as (_, address):
        pass
    with saver(tmp_path, address) as exporter:
        exporter.save(model_of("dense"), step(0))
    assert exporter.upload_failure
    assert len(exporter.exports()) == 1
