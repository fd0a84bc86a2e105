"""`milepost import`: what it is is seen, what came and what did not is said, and what goes wrong can be read aloud. A11"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import milepost
from milepost.cli import importing
from milepost.cli.main import main
from milepost.errors import MissingExtraError
from milepost.pytorch.dcp import give_up, holding
from tests.engine.training import without_git
from tests.pytorch.importing.test_areal import Strange, listed
from tests.pytorch.importing.trees import save_payloads, write_generations, write_older

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(autouse=True)
def _nothing_is_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    without_git(monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield
    for url in list(holding._held):
        give_up(url)


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("payloads")
    save_payloads(0, str(place))
    return place


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def failed(code: int, *arguments: object) -> str:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.match(r"error: [a-z\-A-Z].*\n(  .*\n)*hint: ", result.stderr)
    return result.stderr


def test_a_trial_of_areal_is_imported_and_all_is_told(payloads: Path) -> None:
    write_generations(Path("math"), payloads)
    result = call("import", "math", "--into", "run")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "g000001 of run is step 7 of math (areal)"
    assert lines[1] == "  came      default/policy, default/optimizer, critic/policy, critic/optimizer, extra, counters"
    assert lines[2].startswith("  left out  verification: DCP keeps no digests; tensors and values were compared with the CRC-32")
    assert any("random generators" in line for line in lines)
    assert lines[-1] == "next: milepost verify run; then milepost.pytorch.RecoverHandler.load goes on at step 8"
    assert "g000001     7" in call("ls", "run").stdout
    assert call("verify", "run").exit_code == 0
    assert "because   imported" in call("show", "run").stdout


def test_the_same_as_a_document(payloads: Path) -> None:
    write_older(Path("math"), payloads)
    result = call("import", "math", "--into", "run", "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found | {"run_id": "", "left_out": []} == {
        "message_type": "import",
        "schema_version": 1,
        "root": "run",
        "source": "math",
        "kind": "areal",
        "dry_run": False,
        "run_id": "",
        "generation": 1,
        "step": 7,
        "components": ["critic/policy", "critic/optimizer", "default/policy", "default/optimizer", "extra", "counters"],
        "left_out": [],
    }
    assert len(found["run_id"]) == 32
    assert any("overwritten in place" in text for text in found["left_out"])


def test_a_dry_run_writes_nothing(payloads: Path) -> None:
    write_generations(Path("math"), payloads)
    for into in ("run", "math"):
        before = listed(Path("math"))
        result = call("import", "math", "--into", into, "--dry-run")
        assert result.stdout.startswith("math (areal) can be imported: step 7; nothing was written\n")
        assert "next:" not in result.stdout
        assert listed(Path("math")) == before
    assert not Path("run").exists()


def test_into_the_trials_own_directory(payloads: Path) -> None:
    write_generations(Path("math"), payloads)
    before = Path("math/LATEST").read_bytes()
    assert call("import", "math", "--into", "math").exit_code == 0
    assert Path("math/LATEST.before-t1").read_bytes() == before
    assert "--add" in failed(2, "import", "math", "--into", "math")


def test_each_kind_is_seen(payloads: Path) -> None:
    write_generations(Path("math"), payloads)
    torch.save({"model": {"w": torch.ones(2)}}, "model.pt")
    seen = {"math": "areal", f"{payloads}/critic": "dcp", "model.pt": "torch"}
    for path, kind in seen.items():
        assert f"{path} ({kind}) can be imported" in call("import", path, "--into", "run", "--dry-run").stdout


def test_a_step_and_components_are_taken_from_the_command_line(payloads: Path) -> None:
    result = call(
        *("import", payloads / "critic", "--into", "run", "--step", 40),
        *("--component", "dcp.model=critic/policy", "--component", "dcp.optim=critic/optimizer"),
    )
    assert "is step 40 of" in result.stdout
    assert "came      critic/policy, critic/optimizer" in result.stdout
    assert len(milepost.load("run", parts=["critic/policy"])["critic/policy"]) == 4  # type: ignore[index]


class TestFailures:
    def test_what_is_not_there(self) -> None:
        assert "there is nothing to import" in failed(10, "import", "nowhere", "--into", "run")

    def test_what_nobody_knows(self) -> None:
        Path("notes.txt").write_text("hello")
        Path("empty").mkdir()
        for path in ("notes.txt", "empty"):
            assert "no checkpoint that milepost knows" in failed(2, "import", path, "--into", "run")

    def test_a_run_of_mileposts_and_an_export(self) -> None:
        milepost.save("mine", {"w": [1.0]})
        Path("export").mkdir()
        Path("export/config.json").write_text("{}")
        assert "hint: it is a run root of milepost's already: milepost ls mine" in failed(2, "import", "mine", "--into", "run")
        assert "from_pretrained" in failed(2, "import", "export", "--into", "run")

    def test_a_component_that_is_none(self, payloads: Path) -> None:
        assert "not KEY=NAME" in failed(2, "import", payloads / "critic", "--into", "run", "--component", "actor")
        assert "not a component's name" in failed(2, "import", payloads / "critic", "--into", "run", "--component", "dcp=nobody")

    def test_a_step_of_what_says_its_own(self, payloads: Path) -> None:
        write_generations(Path("math"), payloads)
        assert "leave out --step" in failed(2, "import", "math", "--into", "run", "--step", 3)

    def test_a_pickle(self, payloads: Path) -> None:
        found = write_generations(Path("math"), payloads)
        (found / "manifest" / "dataloader_info.pkl").write_bytes(pickle.dumps(Strange(Path("ran"))))
        told = failed(2, "import", "math", "--into", "run")
        assert told.startswith(
            "error: the position of the data (dataloader_info.pkl) is a pickle which makes more than plain data"
        )
        assert "calls: posix.system" in told
        assert "--trust-pickle" in told
        assert not Path("ran").exists()
        assert not Path("run/generations").exists()

    def test_a_pointer_that_is_torn(self, payloads: Path) -> None:
        write_generations(Path("math"), payloads)
        Path("math/LATEST").write_text("{")
        assert "file: LATEST" in failed(13, "import", "math", "--into", "run")

    def test_a_name_that_would_steer_a_terminal_is_made_plain(self, payloads: Path) -> None:
        Path("a\x1b[2Jb").mkdir()
        assert "\x1b" not in failed(2, "import", "a\x1b[2Jb", "--into", "run")

    def test_a_package_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "milepost.adapters.sb3.importing", None)
        monkeypatch.setitem(importing.KINDS, "sb3", ("stable_baselines3", "Nothing"))
        monkeypatch.setitem(sys.modules, "stable_baselines3", None)
        with pytest.raises(MissingExtraError) as caught:
            importing.known("sb3")
        assert caught.value.hint == "pip install 'milepost[sb3]'"
        Path("x").write_text("")
        assert "not_asked: stable_baselines3 is not installed" in failed(2, "import", "x", "--into", "run")


def test_help_is_shown_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from milepost.cli.main import main; main(['import', '--help'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert "--trust-pickle" in shown.stdout
