"""Sources that are written to while they are read, or are not what they are said to be, are refused by a plain word. A11"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

import milepost
from milepost.errors import CorruptError, UsageError
from milepost.pytorch.importing import dcp_directory, torch_file
from milepost.pytorch.importing.areal import Areal
from milepost.pytorch.importing.base import Kind, Options
from milepost.pytorch.importing.dcp_directory import DcpDirectory
from milepost.pytorch.importing.torch_file import TorchFiles
from tests.pytorch.importing.conftest import Payloads
from tests.pytorch.importing.trees import STEP, pointer, write_generations


def refused(kind: Kind, path: Path, root: Path, word: str) -> CorruptError:
    with pytest.raises(CorruptError) as caught:
        kind.bring(path, str(root), Options())
    assert caught.value.kind == "damaged-source"
    assert word in str(caught.value)
    generations = root / "generations"
    assert not generations.exists() or not list(generations.iterdir())
    return caught.value


def after_once(module: Any, name: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when a function of a module has returned for the first time."""
    function, done = getattr(module, name), list[bool]()

    def called(*args: Any, **settings: Any) -> Any:
        found = function(*args, **settings)
        if not done:
            done.append(True)
            act()
        return found

    monkeypatch.setattr(module, name, called)


def test_a_file_of_torch_that_is_written_anew_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = tmp_path / "last.pt", tmp_path / "other.pt"
    torch.save({"model": {"w": torch.zeros(1000)}}, source)
    torch.save({"model": {"w": torch.ones(1000)}}, other)

    def overwrite() -> None:
        before = source.stat().st_mtime_ns
        with source.open("r+b") as file:  # not shorter: what is mapped beyond the end of a file kills who looks at it
            file.write(other.read_bytes())
        os.utime(source, ns=(before + 1, before + 1))

    with monkeypatch.context() as patched:
        after_once(torch_file, "_read", overwrite, patched)
        error = refused(TorchFiles(), source, tmp_path / "run", "changed while it was read")
        assert "nothing writes to it" in error.hint
    assert TorchFiles().bring(source, str(tmp_path / "run"), Options()).generation == 1
    assert torch.equal(milepost.load(tmp_path / "run")["policy"]["w"], torch.ones(1000))  # type: ignore[index]


def test_a_newer_file_of_torch_that_takes_its_name_meanwhile_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = tmp_path / "last.pt", tmp_path / "other.pt"
    torch.save({"model": {"w": torch.zeros(1000)}}, source)
    torch.save({"model": {"w": torch.ones(1000)}}, other)
    after_once(torch_file, "_read", lambda: other.rename(source), monkeypatch)
    TorchFiles().bring(source, str(tmp_path / "run"), Options())
    assert torch.equal(milepost.load(tmp_path / "run")["policy"]["w"], torch.zeros(1000))  # type: ignore[index]


@pytest.mark.parametrize("which", [".metadata", "__0_0.distcp"])
def test_a_directory_of_dcp_into_which_another_step_is_saved_meanwhile_is_refused(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("latest", 1.0), ("newer", 2.0)):
        state = {"model": {"a": torch.full((100,), value), "b": torch.full((100,), value)}}
        torch_dcp.save(state, checkpoint_id=tmp_path / name, no_dist=True)
    source = tmp_path / "latest"

    def overwrite() -> None:
        before = (source / which).stat().st_mtime_ns
        shutil.copyfile(tmp_path / "newer" / which, source / which)
        os.utime(source / which, ns=(before + 1, before + 1))

    with monkeypatch.context() as patched:
        after_once(dcp_directory, "read_chunk", overwrite, patched)
        refused(DcpDirectory(), source, tmp_path / "run", "changed while it was read")
    assert DcpDirectory().bring(source, str(tmp_path / "run"), Options()).generation == 1


def test_what_is_no_trial_of_areals_and_is_said_to_be_one_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(b"")
    (tmp_path / "a directory").mkdir()
    os.mkfifo(tmp_path / "a pipe")
    for name in ("a file", "a directory", "a pipe"):
        with pytest.raises(UsageError, match="not the directory of a trial of AReaL's") as caught:
            Areal().bring(tmp_path / name, str(tmp_path / "run"), Options())
        assert caught.value.kind == "unknown-source"


@pytest.mark.parametrize("what", ["payloads/critic", "manifest", "payloads", "."])
def test_a_directory_of_a_trial_that_is_a_link_is_not_followed(what: str, payloads: Payloads, tmp_path: Path) -> None:
    found = write_generations(tmp_path / "trial", payloads.of(1))
    place = Path(os.path.normpath(found / what))
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    refused(Areal(), tmp_path / "trial", tmp_path / "run", "is a link")


def test_an_engine_whose_name_no_file_can_have_is_refused(payloads: Payloads, tmp_path: Path) -> None:
    write_generations(tmp_path / "trial", payloads.of(1))
    (tmp_path / "trial" / "LATEST").write_text(pointer(engines=("default", "x" * 300)))
    refused(Areal(), tmp_path / "trial", tmp_path / "run", "no directory, or not there")


def test_a_step_that_no_reader_would_believe_is_refused(payloads: Payloads, tmp_path: Path) -> None:
    write_generations(tmp_path / "trial", payloads.of(1), step={**STEP, "global_step": 10**30})
    refused(Areal(), tmp_path / "trial", tmp_path / "run", "does not say which step")
    torch.save({"model": {"w": torch.ones(1)}}, tmp_path / "last.pt")
    with pytest.raises(UsageError, match="further from 0"):
        TorchFiles().bring(tmp_path / "last.pt", str(tmp_path / "run"), Options(step=10**30))
    assert not (tmp_path / "run" / "generations").exists()
    assert json.loads((tmp_path / "trial" / "LATEST").read_text())["global_step"] == 10**30
