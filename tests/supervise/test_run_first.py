"""`milepost run` as the first process of a container: signals arrive, nobody stays a zombie, and strangers are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from milepost.supervise.group import processes
from tests.supervise.attempts import PRELUDE, until
from tests.supervise.runs import LOOP, QUICK, Started, running

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def can_unshare() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not can_unshare(), reason="a PID namespace of one's own is not permitted here")


def first_of(run: Started) -> int:
    """Return the process that is PID 1 in there, by its number out here."""
    pid: int = until(lambda: next((each.pid for each in processes().values() if each.parent == run.process.pid), 0))
    return pid


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGHUP, 75)])
def test_it_hears_signals_that_the_kernel_hides_from_a_first_process(tmp_path: Path, number: int, code: int) -> None:
    script = LOOP.replace('at(counters["step"])', "counters['step'] == 15 and (made('held'), hold())").replace(
        "np.random.seed", "def hold():\n    while not Path('go').exists(): pass\n\nnp.random.seed"
    )
    with running(tmp_path, script, before=CONTAINER) as run:
        assert int(run.gate("held")) < 20, "a number within the container"
        os.kill(first_of(run), number)
        run.hears("passed on")
        (tmp_path / "go").touch()
        assert run.ends() == code, run.said()


ORPHANS = """
# Each is daemonized: its parent is gone, and whoever is the first process is to fetch its status.
for number in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
def zombies():
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and " Z " in (Path("/proc") / pid / "stat").read_text()]
while True:
    try:
        if not zombies():
            break
    except FileNotFoundError:
        pass
"""


def test_it_fetches_the_status_of_every_orphan(tmp_path: Path) -> None:
    with running(tmp_path, PRELUDE + ORPHANS, before=CONTAINER) as run:
        assert run.ends() == 0, run.said()


def test_a_stranger_in_its_container_outlives_an_attempt(tmp_path: Path) -> None:
    script = (
        PRELUDE
        + """
if os.environ["MILEPOST_ATTEMPT"] == "1":
    made("ready")
    while not Path("stranger").exists(): pass
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    made("child", str(child.pid))
    sys.exit(75)
there = [int(Path(name).read_text()) for name in ("stranger", "child")]
made("alive", str([os.path.exists(f"/proc/{pid}") for pid in there]))
"""
    )
    with running(tmp_path, script, *QUICK, before=CONTAINER) as run:
        run.gate("ready")
        enter = ["nsenter", "-t", str(first_of(run)), "-p", "-m", "setsid", "--fork"]
        # As `docker exec` does: a process that comes from elsewhere, and whose parent is gone.
        words = f"cd '{tmp_path}' && echo $$ > stranger.new && mv stranger.new stranger && exec sleep 1000"
        subprocess.run([*enter, "sh", "-c", words], check=True)
        assert run.ends() == 0, run.said()
        assert (tmp_path / "alive").read_text() == "[True, False]"


def test_all_of_it_ends_with_it(tmp_path: Path) -> None:
    with running(tmp_path, PRELUDE + "made('ready'); wait_for_ever()", before=CONTAINER) as run:
        run.gate("ready")
        first = first_of(run)
        below = [each.pid for each in processes().values() if each.parent == first]
        assert below
        os.kill(first, signal.SIGKILL)
        run.ends()
        until(lambda: not {each.pid for each in processes().values() if not each.has_ended} & set(below))
