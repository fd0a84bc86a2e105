"""`milepost drill` at a terminal: the transcript of docs/drills.md, bounds and their exit codes, JSON, pages. B11, C17"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from tests.supervise.drilled import written


@pytest.fixture(autouse=True)
def _scratch_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drill", *arguments], prog_name="milepost")


def command(name: str = "exact") -> list[str]:
    return ["--", sys.executable, str(written(name, Path.cwd(), {1: "end"}))]


TRANSCRIPT = r"""kill9  1/1 recovered  RPO p50 \d+ max \d+ steps \(bound 40\)  p50 [\d.]+ max [\d.]+ s  \
RTO p50 [\d.]+ max [\d.]+ s \(bound 3,600\)  lost generations 0  end identical 1/1
RPO: from the generation that a run went on from, .*
RTO: from the kill to the first safe point at which it had trained on; .*
""".replace("\\\n", "")


def test_a_kill_within_its_bounds(tmp_path: Path) -> None:
    result = invoke("kill9", "--runs", "1", "--max-rto", "1h", "--max-rpo-steps", "40", "--html", "page.html", *command())
    assert result.exit_code == 0, result.output
    assert re.fullmatch(TRANSCRIPT, result.stdout), result.stdout
    undisturbed, run = result.stderr.splitlines()
    assert undisturbed.startswith("undisturbed: ")
    assert run.startswith("run 1/1: killed with SIGKILL while it ")
    assert Path("page.html").read_text().count("<svg") == 4
    assert os.listdir(tmp_path / "scratch") == []


def test_a_bound_that_is_missed_exits_with_17_and_says_which() -> None:
    result = invoke("kill9", "--runs", "1", "--max-rto", "0s", *command())
    assert result.exit_code == 17
    assert "MISSED: the bound on RTO\nhint: " in result.stdout


def test_a_command_that_does_not_start_again_exits_with_17_and_shows_what_it_said() -> None:
    result = invoke("kill9", "--runs", "1", *command("refuses a second start"))
    assert result.exit_code == 17, result.output
    assert "NOT RECOVERED in run 1: started again it ended with exit code 1\n" in result.stdout
    assert "run 1: the end was not reached\nthe end of its stderr:\n  locked by another run\n" in result.stdout


def test_the_document_has_every_run_with_its_marks() -> None:
    result = invoke("kill9", "--runs", "1", "--json", *command())
    found = json.loads(result.stdout)
    assert (found["message_type"], found["drill"], found["outcome"]) == ("drill", "kill9", "recovered")
    (run,) = found["runs"]
    assert run["recovered"]
    assert {"start", "struck", "resumed", "ended"} <= {mark["kind"] for mark in run["marks"]}
    assert found["missed_bounds"] == []


def test_nothing_is_proven_of_a_command_that_saves_nothing() -> None:
    result = invoke("kill9", *command("saves nothing"))
    assert result.exit_code == 22
    assert result.stdout.startswith("NOTHING PROVEN: it ended, and saved nothing\nhint: ")


def test_sigterm_to_the_sample_saves_exits_with_75_and_loses_no_step() -> None:
    """The built-in sample is some two seconds long, and listens."""
    result = invoke("term", "--runs", "1")
    assert result.exit_code == 0, result.output
    assert "with exit code 75; went on from step" in result.stderr
    assert "RPO p50 0 max 0 steps" in result.stdout


def test_a_command_that_does_not_listen_has_not_recovered_from_sigterm() -> None:
    result = invoke("term", "--runs", "1", *command("does not listen"))
    assert result.exit_code == 17
    assert "NOT RECOVERED in run 1: it does not listen to SIGTERM, which ended it at once: nothing was saved" in result.stdout


def test_a_disk_that_is_really_full_loses_nothing(tmp_path: Path) -> None:
    """A process of its own, since it takes mounts of its own; the sample is some two seconds long."""
    script = "import sys; from milepost.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "drill", "diskfull", "--runs", "1"], capture_output=True, text=True)
    if done.returncode == 2 and "no file system can be made that is really full" in done.stderr:
        pytest.skip("a really full disk: not run: mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert re.search(r"run 1/1: disk full while it \w+, at step \d+; it ", done.stderr)
    assert "the kernel refused, nothing was simulated" in done.stdout
    assert os.listdir(tmp_path / "scratch") == []


def test_a_small_run_is_copied_to_a_disk_that_is_to_be_full_and_goes_on_there() -> None:
    """A process of its own, since it takes mounts of its own, and three runs of the sample. So is its beginning: where torch is
    imported, as other tests have it, torch's generator is saved, too, and the sample knows none."""
    sample = [sys.executable, "-m", "milepost.supervise.drill_sample"]
    begin = "from milepost.supervise import drill_sample; drill_sample._STEP_S = 0.0; drill_sample.train(100)"
    subprocess.run([sys.executable, "-c", begin], check=True, capture_output=True)
    script = "import sys; from milepost.cli.main import main; main()"
    arguments = ["drill", "diskfull", "--runs", "1", "--root", "runs/sample", "--", *sample]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    if done.returncode == 2 and "no file system can be made that is really full" in done.stderr:
        pytest.skip("a really full disk: not run: mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert "newest generation of step 100" in done.stderr


def test_a_disk_that_was_mounted_for_it_is_filled_and_left_empty(tmp_path: Path) -> None:
    """A process of its own, in mounts of its own, where it may make none; the sample is some two seconds long."""
    script = "import sys; from milepost.cli.main import main; main()"
    (tmp_path / "small").mkdir()
    arguments = ["drill", "diskfull", "--runs", "1", "--disk", str(tmp_path / "small")]
    mount = 'mount -t tmpfs -o size=64m small "$0" && "$@" && test -z "$(ls "$0")"'
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    start = [*space, "sh", "-c", mount, str(tmp_path / "small")]
    if shutil.which("unshare") is None or subprocess.run([*start, "true"], capture_output=True).returncode != 0:
        pytest.skip("a full disk that was mounted: not run: mounting is not allowed here")
    done = subprocess.run([*start, sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"run 1/1: disk full while it \w+, at step \d+; it ", done.stderr)


def test_a_disk_that_others_use_is_never_filled(tmp_path: Path) -> None:
    result = invoke("diskfull", "--runs", "1", "--disk", str(tmp_path), *command())
    assert result.exit_code == 2
    assert (
        "error: this is no empty file system of its own, which may be filled: it is a directory of a file system that holds more"
        in result.stderr
    )
    assert "undisturbed" not in result.stderr
    result = invoke("diskfull", "--runs", "1", "--disk", "/", *command())
    assert result.exit_code == 2
    assert not Path("/milepost-drill.filler").exists()


def test_the_list_names_every_drill() -> None:
    result = invoke("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["DRILL", "kill9", "term", "stop", "bitflip", "diskfull"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "error: no drill was named"),
        (("kill9", "--root", "runs/none"), 2, "milepost drill kill9 --root runs/none -- python train.py"),
        (("kill9", "--root", "runs/none", "--", "true"), 10, "there is no milepost run here"),
        (("kill9", "--", "no-such-program"), 2, "the command cannot be started"),
        (
            ("kill9", "--max-rto", "soon", "--", "true"),
            2,
            "'--max-rto': 'soon' is not a length of time (like 90s, 15m, 12h or 7d)",
        ),
        (("kill9", "--timeout", "0", "--", "true"), 2, "'--timeout': it has to be longer than no time at all"),
        (("kill9", "--timeot", "3m", "--", "true"), 2, "No such option"),
        (("kill9", "python", "-c", "pass"), 2, "options of your own command come after --"),
        (("kill9", "--disk", "/", "--", "true"), 2, "only diskfull fills a disk"),
        (("diskfull", "--disk", "none", "--", "true"), 2, "which may be filled: No such file or directory"),
        (("kill9", "--html", "none/page.html", "--", "true"), 2, "the page cannot be written there"),
    ],
)
def test_what_is_asked_for_wrongly_is_said_at_once(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, says in result.stderr) == (code, True), result.output


def test_a_command_that_a_signal_without_a_name_ends_is_told_of_all_the_same() -> None:
    result = invoke("term", "--runs", "1", *command("ends by a signal without a name"))
    assert result.exit_code == 17, result.output
    assert "it ended with signal 40" in result.stdout


def test_a_page_that_cannot_be_written_is_told_before_anything_is_started() -> None:
    result = invoke("kill9", "--html", "nowhere/page.html", *command())
    assert result.exit_code == 2
    assert "nowhere/page.html" in result.output
    assert not [*Path("../scratch").iterdir()]


def test_a_list_for_programs() -> None:
    listed = json.loads(invoke("--list", "--json").stdout)
    assert list(listed["drills"]) == ["kill9", "term", "stop", "bitflip", "diskfull"]


def test_a_page_that_cannot_be_written_at_the_end_costs_nobody_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = invoke("kill9", "--html", "page.html", "--", "true")
    assert result.exit_code == 22
    assert "NOTHING PROVEN" in result.stdout
    assert "the page could not be written (No space left on device): page.html" in result.stderr


def test_a_copy_that_is_at_its_end_is_said_to_be(tmp_path: Path) -> None:
    script = command()
    subprocess.run(script[1:], check=True, capture_output=True)
    result = invoke("kill9", "--root", "runs/mine", *script)
    assert (result.exit_code, "that run is at its end\nhint: drill it from its beginning" in result.stdout) == (22, True), (
        result.output
    )
