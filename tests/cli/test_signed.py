"""`--key-file` on every verb, and `milepost sign`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner, Result

import milepost
from milepost.cli.main import main

KEY = "a key of more than sixteen bytes"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (10, 20):
        milepost.save(tmp_path / "old", {"policy": {"w": [float(step)]}}, step=step)
    return tmp_path / "old"


def test_every_verb_on_a_run_takes_a_key() -> None:
    commands = {name: main.get_command(Context(main), name) for name in main.list_commands(Context(main))}
    verbs = [name for name, command in commands.items() if "root" in {each.name for each in command.params}]
    verbs = [name for name in verbs if name not in ("serve", "unload")]  # what belongs to a service bears no signature
    assert {"ls", "show", "verify", "rollback", "reset", "drop", "sign", "pin", "unpin"} <= set(verbs)
    for name in verbs:
        assert "--key-file" in call(name, "--help").output, name


def test_an_unsigned_run_is_refused_then_signed_and_used_with_its_key(root: Path, tmp_path: Path, key_file: Path) -> None:
    with_key = ("--key-file", key_file)
    refused = call("ls", root, *with_key)
    assert refused.exit_code == 13
    assert "milepost sign" in refused.stderr
    new = tmp_path / "new"
    assert call("sign", root, new).exit_code == 2
    assert not new.exists()
    made = call("sign", root, new, *with_key)
    assert (made.exit_code, made.stdout) == (0, f"{new} holds it, signed, as g000001 (step 20)\n")
    assert milepost.load(new, key_file=key_file) == milepost.load(root)
    assert call("verify", new, *with_key).exit_code == 0
    assert call("pin", new).exit_code == 2
    assert call("pin", new, *with_key).exit_code == 0
    milepost.save(new, {"policy": {"w": [30.0]}}, step=30, key_file=key_file)
    rolled = call("rollback", new, "1", *with_key, "--json")
    assert json.loads(rolled.stdout)["generation"]["number"] == 3
    assert call("reset", new).exit_code == 2
    assert call("reset", new, *with_key).exit_code == 0
    assert call("verify", new, *with_key).exit_code == 0


def test_a_wrong_key_says_so_and_is_not_repeated(root: Path, tmp_path: Path, key_file: Path) -> None:
    call("sign", root, tmp_path / "new", "--key-file", key_file)
    key_file.write_text("another key of enough bytes")
    result = call("verify", tmp_path / "new", "--key-file", key_file, "-v")
    assert result.exit_code == 13
    assert "not signed with this key" in result.stderr
    assert "another key" not in result.output


def test_the_environment_gives_the_key_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_KEY", KEY)
    assert call("sign", root, tmp_path / "new").exit_code == 0
    assert call("ls", tmp_path / "new").exit_code == 0
    assert call("ls", root).exit_code == 13
