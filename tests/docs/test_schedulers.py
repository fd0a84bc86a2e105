"""Run the recipes of docs/schedulers.md as far as that can be done without a cluster.

The batch scripts are run by bash as they stand there, with programs in the place of SLURM's and of a container's; the rest is
parsed, and its exit codes are compared with ours.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost import errors
from milepost.lifecycle.stopping import EXIT_CODE
from milepost.supervise.kinds import KINDS
from tests.docs.test_code_blocks import ROOT, runnable_blocks
from tests.supervise.attempts import FAILS_AFTER_S, until

PAGE = (ROOT / "docs" / "schedulers.md").read_text(encoding="utf-8")
BLOCKS = [(block.language, block.body) for block in runnable_blocks(PAGE)]
SCRIPTS = {
    found[1]: body
    for language, body in BLOCKS
    if language == "sh" and (found := re.search(r"--job-name=(\w+)", body)) is not None
}


def block(language: str) -> str:
    (found,) = (body for name, body in BLOCKS if name == language)
    return found


# SLURM.

TRAIN = """
import os, sys, time
from pathlib import Path
import numpy as np
import milepost
from milepost import every

root = sys.argv[1] if len(sys.argv) > 1 else "runs/mine"
weights, counters = np.zeros(4), {"step": 0}
state = {"policy": {"weights": weights}, "counters": counters}
with milepost.CheckpointEngine(root, state=state, when=every(steps=10)) as engine:
    engine.resume()
    print("attempt", os.environ["MILEPOST_ATTEMPT"], "from step", counters["step"], flush=True)
    first = counters["step"]
    while counters["step"] < first + 10 or not Path("finish").exists():
        weights += 1
        counters["step"] += 1
        engine.save_if_due(counters["step"])
        if counters["step"] == first + 10:
            Path("trains").touch()
        time.sleep(0.005)
"""
STANDS_IN = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLS"
{}
"""
SHOWS = 'if [ "$1" != requeue ]; then echo "JobId=4711 JobState=${JOB_STATE:-RUNNING} Requeue=1"; fi'


class Cluster:
    """A directory that a job is submitted in, and the programs that it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.program("scontrol", STANDS_IN.format(SHOWS))
        self.program("apptainer", STANDS_IN.format('shift 2\nexec "$@"'))
        main = "import sys; from milepost.cli.main import main; sys.argv[0] = 'milepost'; main(prog_name='milepost')"
        self.program("milepost", f"#!{sys.executable}\n{main}\n")
        self.program("python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        (folder / "train.py").write_text(TRAIN)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def start(self, script: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start the script as slurmd would: in a session of its own, with its output added to one log."""
        (self.folder / "job.sh").write_text(script)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILEPOST_", "SLURM_"))}
        given = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "CALLS": str(self.calls)}
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                ["bash", "job.sh"],
                cwd=self.folder,
                env=kept | given | {"SLURM_JOB_ID": "4711", "TMPDIR": str(self.folder)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def preempted(self, script: str, **environment: str) -> int:
        """Run the script, send SIGTERM to its first process once it has trained for a while, and return its exit code."""
        (self.folder / "trains").unlink(missing_ok=True)
        job = self.start(script, **environment)
        try:
            until((self.folder / "trains").exists)
            job.send_signal(signal.SIGTERM)
            return job.wait(FAILS_AFTER_S)
        finally:
            job.kill()
            job.wait()

    def ran(self, script: str, **environment: str) -> int:
        """Run the script to its end."""
        (self.folder / "finish").touch()
        job = self.start(script, **environment)
        try:
            return job.wait(FAILS_AFTER_S)
        finally:
            job.kill()
            job.wait()

    @property
    def asked(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if call.startswith("scontrol requeue")]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    return Cluster(tmp_path)


def test_the_page_has_these_scripts() -> None:
    assert set(SCRIPTS) == {"cartpole", "contained", "seeds"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_batch_script_says_what_has_to_be_said(name: str) -> None:
    """Words and values that sbatch knows (sbatch(1)); a misspelled one is an error there only once it is submitted."""
    first, *lines = SCRIPTS[name].splitlines()
    assert first == "#!/bin/bash"
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines if line.startswith("#SBATCH"))
    assert set(asked) <= {"job-name", "time", "requeue", "signal", "open-mode", "output", "array"}
    assert asked["open-mode"] == "append"
    assert asked["requeue"] == ""
    found = re.fullmatch(r"B:TERM@(\d+)", asked["signal"])
    assert found is not None
    (grace,) = re.findall(r"--grace (\d+)s", SCRIPTS[name])
    assert int(grace) < int(found[1])
    assert not [line for line in lines if line.startswith("#SBATCH") and lines.index(line) > len(asked)]  # sbatch stops reading


def test_a_job_that_is_told_to_end_saves_and_is_put_back_and_goes_on(cluster: Cluster) -> None:
    script = SCRIPTS["cartpole"]
    assert cluster.preempted(script) == EXIT_CODE
    assert cluster.asked == ["scontrol requeue 4711"]
    assert cluster.ran(script, SLURM_RESTART_COUNT="1") == 0
    (first, second) = re.findall(r"attempt (\d+) from step (\d+)", cluster.log)
    assert first == ("1", "0")
    assert second[0] == "2"
    assert int(second[1]) >= 10
    assert len(cluster.asked) == 1


def test_a_job_that_was_cancelled_is_not_put_back(cluster: Cluster) -> None:
    assert cluster.preempted(SCRIPTS["cartpole"], JOB_STATE="COMPLETING") == EXIT_CODE
    assert cluster.asked == []
    assert "job 4711 is COMPLETING" in cluster.log


def test_of_an_array_one_task_is_put_back_with_a_root_of_its_own(cluster: Cluster) -> None:
    task = {"SLURM_ARRAY_JOB_ID": "4704", "SLURM_ARRAY_TASK_ID": "7"}
    assert cluster.preempted(SCRIPTS["seeds"], **task) == EXIT_CODE
    assert cluster.asked == ["scontrol requeue 4704_7"]
    assert [path.name for path in (cluster.folder / "runs").iterdir()] == ["seed-7"]


@pytest.mark.parametrize(("state", "asked"), [("RUNNING", 1), ("COMPLETING", 0)])
def test_outside_of_a_container_without_scontrol_the_script_does_that(cluster: Cluster, state: str, asked: int) -> None:
    # What is in the container finds no scontrol; bash, outside, does.
    inside = cluster.folder / "inside"
    inside.mkdir()
    for name in ("milepost", "python"):
        shutil.copy(cluster.programs / name, inside / name)
    cluster.program("apptainer", STANDS_IN.format(f'shift 2\nPATH={inside}:/usr/bin:/bin\nexec "$@"'))
    assert cluster.preempted(SCRIPTS["contained"], JOB_STATE=state) == EXIT_CODE
    assert cluster.asked == ["scontrol requeue 4711"] * asked
    assert "there is no scontrol" in cluster.log


# Kubernetes.


def of_yaml(text: str) -> Any:
    """Read the part of YAML that the page uses: nested mappings and sequences, and values that are JSON or plain words."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    value, rest = _node(lines)
    assert not rest
    return value


def _node(lines: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
    indent, first = lines[0]
    found: Any = [] if first.startswith("- ") else {}
    while lines and lines[0][0] == indent and lines[0][1].startswith("- ") == isinstance(found, list):
        if isinstance(found, list):
            value, lines = _node([(indent + 2, lines[0][1][2:]), *lines[1:]])
            found.append(value)
            continue
        key, colon, text = lines[0][1].partition(":")
        assert colon, lines[0]
        assert key not in found, key
        lines = lines[1:]
        if text:
            found[key] = _scalar(text.strip())
        else:
            below = indent if lines[0][1].startswith("- ") and lines[0][0] == indent else indent + 1
            assert lines[0][0] >= below, key
            found[key], lines = _node(lines)
    assert not lines or lines[0][0] < indent or isinstance(found, list), lines[0]
    return found, lines


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        assert re.fullmatch(r"[\w./:-]+", text), text
        return text


def test_the_job_of_kubernetes_has_the_grace_the_policy_and_the_exec_form_that_it_needs() -> None:
    job = of_yaml(block("yaml"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is refused with any other
    assert container["command"][:2] == ["milepost", "run"]
    assert container["command"][-1] == "--"
    grace = container["command"][container["command"].index("--grace") + 1]
    assert int(grace.removesuffix("s")) < pod["terminationGracePeriodSeconds"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    rules = spec["podFailurePolicy"]["rules"]
    assert all(rule["onExitCodes"]["containerName"] == container["name"] for rule in rules if "onExitCodes" in rule)
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def final_codes() -> set[int]:
    """Return the exit codes of ends that are not worth another start: those of kinds with no retries, and what says damage."""
    return {
        row.exit_code for row in KINDS.values() if row.exit_code is not None and (row.retries == 0 or row.fault == "data")
    } - {11}


def test_the_codes_that_end_a_job_are_those_that_a_further_start_does_not_heal() -> None:
    rules = of_yaml(block("yaml"))["spec"]["podFailurePolicy"]["rules"]
    by_action = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert by_action == {"Ignore": [EXIT_CODE], "FailJob": sorted(final_codes())}


def test_the_codes_of_the_page_are_those_of_milepost() -> None:
    (line,) = re.findall(r"^\| ([\d, ]+) \| called wrong", PAGE, re.MULTILINE)
    assert {int(code) for code in line.split(",")} == final_codes()
    codes = {errors.UsageError.exit_code, errors.MismatchError.exit_code, errors.ConflictError.exit_code}
    assert codes == {2, 15, 11}


def test_the_small_reader_of_yaml_reads_what_yaml_means() -> None:
    text = 'a:\n  - b: 1\n    c: ["x", 2]\n  - b: w/x.y:1\nd:\n  e:\n    f: true\n'
    assert of_yaml(text) == {"a": [{"b": 1, "c": ["x", 2]}, {"b": "w/x.y:1"}], "d": {"e": {"f": True}}}
    for wrong in ("a: 1\na: 2\n", "a:\n  b: 1\n c: 2\n", "a b\n"):
        with pytest.raises(AssertionError):
            of_yaml(wrong)


# Docker and systemd.


def test_the_image_starts_milepost_run_without_a_shell() -> None:
    lines = dict(line.partition(" ")[::2] for line in block("dockerfile").splitlines())
    entry, command = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
    assert entry[:2] == ["milepost", "run"]
    assert entry[-1] == "--"
    assert command == ["python", "train.py"]
    assert lines["STOPSIGNAL"] == "SIGTERM"
    (docker,) = (body for language, body in BLOCKS if language == "sh" and body.startswith("docker"))
    (timeout,) = re.findall(r"--stop-timeout (\d+)", docker)
    assert int(entry[entry.index("--grace") + 1].removesuffix("s")) < int(timeout)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block("ini"))
    return parser


def test_the_unit_gives_time_signals_one_process_and_knows_75() -> None:
    service = unit()["Service"]
    assert (service["KillMode"], service["RestartForceExitStatus"], service["SuccessExitStatus"]) == ("mixed", "75", "75")
    (grace,) = re.findall(r"milepost run --grace (\d+)s -- ", service["ExecStart"])
    assert int(grace) < int(service["TimeoutStopSec"])


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd here")
    (tmp_path / "cartpole.service").write_text(block("ini"))
    done = subprocess.run([program, "verify", str(tmp_path / "cartpole.service")], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "cartpole.service" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr
