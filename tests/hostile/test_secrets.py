"""A secret that a process knows reaches neither a byte of the run root nor a line of its log (B19)."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost
from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.engine.collecting import collect
from milepost.engine.redact import redacted, without_secrets
from milepost.errors import StoreError
from tests.engine.training import local, without_git
from tests.hostile.planted import live_state

SECRET = "xK7qPl0Zt9vB2mNd"
COMMANDS = [
    ["--token=" + SECRET],
    ["--token", SECRET],
    ["--token", "-" + SECRET],
    ["--api-key", SECRET],
    ["--api_key=" + SECRET],
    ["--wandb.key", SECRET],
    ["--password", SECRET],
    ["-p", SECRET],
    ["-k", SECRET, "--lr", "1"],
    ["WANDB_API_KEY=" + SECRET, "python"],
    ["AWS_SECRET_ACCESS_KEY='" + SECRET + "'"],
    ["https://user:" + SECRET + "@host/x"],
    ["https://" + SECRET + "@github.com/a/b.git"],
    ["git+ssh://" + SECRET + "@host/x"],
    ["postgres://user:p%40" + SECRET + "@host:5432/db"],
    ["s3://bucket/run?X-Amz-Signature=" + SECRET + "&x=1"],
    ["https://account.blob/x?sv=1&sig=" + SECRET],
    ["--header", "Authorization: Bearer " + SECRET],
    ["--header", "X-Api-Key: " + SECRET],
    ["--config", '{"db": {"password": "' + SECRET + '", "port": 1}}'],
    ["--config=db.password=" + SECRET],
    ["env.auth_token: " + SECRET],
    ["hf_" + SECRET + SECRET],
    ["ghp_" + SECRET + SECRET],
    ["sk-proj-" + SECRET + SECRET],
    ["--weird", SECRET + SECRET],
    ["-----BEGIN RSA PRIVATE KEY-----\n" + SECRET + "\n-----END RSA PRIVATE KEY-----"],
    ["--hmac-key", SECRET],
    ["MILEPOST_KEY=" + SECRET],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0].replace(SECRET, "S")[:30])
def test_a_command_line_is_recorded_without_its_secrets(arguments: list[str]) -> None:
    shown = without_secrets(["python", "train.py", *arguments])
    assert SECRET not in shown
    assert shown.startswith("python train.py ")


@pytest.mark.parametrize(
    "argument",
    [
        "--lr=3e-4",
        "--env=CartPole-v1",
        "runs/ppo_cartpole_lr3e4_seed12_batch64/x",
        "--steps",
        "1000000",
        "s3://bucket/run",
        "--tokens",
    ],
)
def test_what_is_no_secret_is_recorded(argument: str) -> None:
    assert argument in without_secrets(["python", argument])


@settings(max_examples=200)
@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_value_of_the_environment_is_found_wherever_it_stands(before: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILEPOST_KEY", SECRET)
        assert SECRET not in redacted(before + SECRET + after)


def test_the_directory_that_a_shell_stands_in_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PWD", "OLDPWD"):
        monkeypatch.setenv(name, "/data/runs")
        assert redacted("could not read /data/runs/ppo/LATEST") == "could not read /data/runs/ppo/LATEST"
    monkeypatch.setenv("DB_PWD", SECRET)
    assert SECRET not in redacted(f"could not log in with {SECRET}")


@pytest.mark.parametrize("text", ["a", "token", "token=", "key:", "://a", "eyJ", "'", '"', " ", "=", "-----BEGIN ", "bearer "])
def test_what_is_looked_through_takes_no_square_of_its_length(text: str) -> None:
    """Else a reason of a megabyte that somebody planted would stop a resume. At the square this test would take hours."""
    assert redacted(text * 300_000)


def everything_in(root: Path) -> bytes:
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(COMMANDS),
    variable=st.sampled_from(["MILEPOST_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD"]),
    said=st.sampled_from(["{}", "could not reach https://me:{}@host/x", "token={}", "refused ({})", "a\n{}\nb"]),
)
def test_a_planted_secret_is_in_no_byte_of_the_root_and_in_no_line_of_the_log(
    command: list[str], variable: str, said: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path_factory.mktemp("run")
    key = SECRET * 2  # long enough for a key that signs
    with pytest.MonkeyPatch.context() as patch:
        without_git(patch)
        patch.setenv(variable, key)
        patch.setattr(sys, "orig_argv", ["python", "train.py", *[argument.replace(SECRET, key) for argument in command]])
        caplog.set_level(logging.DEBUG)
        _train_and_fail(root, said.format(key), patch)
    assert len(everything_in(root)) > 1000
    assert key.encode() not in everything_in(root)
    assert key not in caplog.text
    assert "a save failed" in caplog.text
    assert b"could not write" in everything_in(root)
    caplog.clear()


def _train_and_fail(root: Path, said: str, patch: pytest.MonkeyPatch) -> None:
    """Save, fail to save and to resume, with errors that quote the secret."""
    store = local(root)
    with milepost.CheckpointEngine(store, state=live_state(), on_save_error="warn", save_errors_max=9) as engine:
        engine.save(1)
        engine.wait()
        whole = store._write_whole

        def fail(name: str, *rest: Any, **more: Any) -> bool:
            if name.startswith("generations/"):
                raise StoreError(f"could not write: {said}", kind="io", retryable=False, url=said)
            return whole(name, *rest, **more)

        patch.setattr(store, "_write_whole", fail)
        engine.save(2)
        engine.wait()
        patch.setattr(store, "_write_whole", whole)
    with milepost.CheckpointEngine(local(root), state=live_state()) as engine:
        engine.resume()
        engine.save(3)


@pytest.mark.parametrize("verb", ["save", "rollback", "reset", "gc"])
def test_every_verb_that_claims_lets_no_secret_into_the_log(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
    for step in (1, 2, 3):
        milepost.save(tmp_path, {"policy": {"step": step}}, step=step)
    log = logging.getLogger("milepost")
    monkeypatch.setattr(log, "filters", [])
    do = {
        "save": lambda: milepost.save(tmp_path, {"policy": {"step": 4}}),
        "rollback": lambda: oneshot.rollback(tmp_path, 2),
        "reset": lambda: oneshot.reset(tmp_path),
        "gc": lambda: collect(local(tmp_path), SystemClock(), milepost.Keep(last=1)),
    }
    do[verb]()
    assert log.filters
