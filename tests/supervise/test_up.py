"""`milepost up` with real processes, really killed; and orders of others at its socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from milepost.cli.main import main
from milepost.supervise.group import processes
from milepost.supervise.launching import launched
from milepost.supervise.orders import RestartAll, RestartRole, RestartWorker
from milepost.supervise.policy import Limits
from milepost.supervise.rolefile import read_plan
from tests.supervise.attempts import is_alive
from tests.supervise.ups import PROGRAM, WORKER, kind_of, started, until, up

RL = """
[role.trainer]
cmd = WORKER
ranks = 2
depends_on = "service"
env = { CODE = "75" }

[role.sampler]
cmd = WORKER
count = 2
depends_on = ["service", "trainer"]
until = "trainer"

[role.service]
cmd = WORKER
ready = "there.service.0.1"
until = ["trainer", "sampler"]
"""
FIRST = ("service.0.1", "trainer.0.1", "trainer.1.1", "sampler.0.1", "sampler.1.1")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def milepost(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(main, words, env={"MILEPOST_CONTROL": str(folder / "pipeline.toml.sock")})


def test_a_worker_that_is_killed_comes_back_alone_and_a_lost_rank_with_its_group(tmp_path: Path) -> None:
    with up(tmp_path, RL) as there:
        there.there(*FIRST)
        before = there.pids()
        kill(before["sampler.1"])
        there.there("sampler.1.2")
        after = there.pids()
        assert changed(before, after) == {"sampler.1"}
        kill(after["trainer.1"])
        there.there("trainer.0.2", "trainer.1.2")
        assert changed(after, there.pids()) == {"trainer.0", "trainer.1"}
        old, new = there.ports("trainer.0.1", "trainer.1.1"), there.ports("trainer.0.2", "trainer.1.2")
        assert old[0] == old[1] != new[0] == new[1]
        assert (tmp_path / "ranks.trainer.1.2").read_text().split()[:2] == ["1", "2"]


def test_each_line_says_whose_it_is_and_the_end_of_a_trainer_is_the_end_of_those_that_serve_it(tmp_path: Path) -> None:
    with up(tmp_path, RL, "--json") as there:
        there.there(*FIRST)
        there.go("trainer.0")
        there.go("trainer.1")
        assert there.ended() == 0
        for name in ("service.0", "trainer.0", "trainer.1", "sampler.0", "sampler.1"):
            assert f"[{name}] {name} is there\n" in there.said
        ended = (tmp_path / "ended").read_text().split()
        assert (sorted(ended[:2]), ended[2:]) == (["sampler.0", "sampler.1"], ["service.0"])
        document = json.loads((tmp_path / "stdout").read_text())
    assert (document["message_type"], document["exit_code"], document["starts"]) == ("up", 0, 5)
    assert {each["standing"] for each in document["processes"]} == {"done"}
    assert not there.control.exists()


def test_all_ends_in_reverse_order_and_starts_again_in_order(tmp_path: Path) -> None:
    with up(tmp_path, RL.replace('ready = "there.service.0.1"', 'restart = "all"')) as there:
        there.there(*FIRST)
        kill(there.pids()["service.0"])
        there.there(*(f"{name[:-1]}2" for name in FIRST))
        ended = (tmp_path / "ended").read_text().split()
        assert (sorted(ended[:2]), sorted(ended[2:])) == (["sampler.0", "sampler.1"], ["trainer.0", "trainer.1"])
        there.hears("sampler.1: started, pid", 2)
        again = [event["role"] for event in there.events() if event["event"] == "started"][5:]
        assert again == ["service", "trainer", "trainer", "sampler", "sampler"]


@pytest.mark.parametrize(
    ("number", "code", "exit_code"),
    [
        (signal.SIGTERM, 75, 75),
        (signal.SIGTERM, 0, 0),
        (signal.SIGUSR1, 75, 75),
        (signal.SIGINT, 75, 130),
        (signal.SIGHUP, 16, 16),
    ],
)
def test_a_signal_ends_all_in_reverse_order_each_with_its_grace(tmp_path: Path, number: int, code: int, exit_code: int) -> None:
    text = RL.replace('"75"', f'"{code}"') + 'grace = "0.2s"\n'  # the service's: it is killed
    with up(tmp_path, text) as there:
        there.there(*FIRST)
        os.kill(there.pids()["service.0"], signal.SIGSTOP)  # it does not even hear
        there.term(number)
        assert there.ended() == exit_code
        ended = (tmp_path / "ended").read_text().split()
        assert (sorted(ended[:2]), sorted(ended[2:4])) == (["sampler.0", "sampler.1"], ["trainer.0", "trainer.1"])
        assert [event["exit_code"] for event in there.events() if event["event"] == "over"] == [exit_code]


def test_an_order_during_a_stop_is_refused_and_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo $$ > new; mv new there.a.0.1; while :; do sleep 0.05; done"
    with up(tmp_path, f'[role.a]\ncmd = ["sh", "-c", "{deaf}"]\ngrace = "1h"\n') as there:
        (pid,) = there.there("a.0.1")
        there.term()
        there.hears("a.0: asked to leave within 3600 s")
        assert kind_of(there.order(RestartWorker("a", 0))) == "shutting-down"
        until(lambda: there.process.poll() is not None, also=there.term)
    assert not is_alive(pid)


def test_orders_are_carried_out_answered_and_done_once(tmp_path: Path) -> None:
    with up(tmp_path, RL) as there:
        there.there(*FIRST)
        before = there.pids()
        answer = there.order(RestartWorker("sampler", 0, why="no heartbeat"), "k1")
        assert there.order(RestartWorker("sampler", 0, why="no heartbeat"), "k1") == answer
        assert kind_of(there.order(RestartWorker("sampler", 0, attempt=1))) == "already"
        after = there.pids()
        assert changed(before, after) == {"sampler.0"}
        assert [(each["pid"], each["attempt"]) for each in answer["standings"]] == [(after["sampler.0"], 2)]
        assert "ordered to restart sampler 0: no heartbeat" in there.said
        there.order(RestartRole("trainer", now=True))
        assert changed(after, there.pids()) == {"trainer.0", "trainer.1"}
        assert "trainer" not in (tmp_path / "ended").read_text()  # killed: it had no time to say so
        assert kind_of(there.order(RestartRole("nobody"))) == "no-such-role"
        assert kind_of(there.order(RestartWorker("sampler", 2))) == "no-such-worker"


def test_restart_all_by_order_takes_what_needs_a_new_sign_of_readiness(tmp_path: Path) -> None:
    with up(tmp_path, RL.replace("there.service.0.1", "new.ready").replace("until = [", "env = { x = '' }\nuntil = [")) as there:
        sign = tmp_path / "new.ready"
        there.there("service.0.1")
        sign.touch()
        there.there(*FIRST)
        asking = threading.Thread(target=there.order, args=(RestartAll(),), name="asks")
        asking.start()
        there.there("service.0.2")
        assert asking.is_alive()  # the sign that is there is that of the first start
        assert not (tmp_path / "there.trainer.0.2").exists()
        sign.write_text("again")
        asking.join()
        there.there(*(f"{name[:-1]}2" for name in FIRST))


def test_the_verbs_say_what_was_done_and_what_runs(tmp_path: Path) -> None:
    with up(tmp_path, RL) as there:
        there.there(*FIRST)
        said = milepost(tmp_path, "restart", "sampler", "0", "--why", "it is slow")
        assert (said.exit_code, said.output) == (0, f"sampler.0: restarted (pid {there.pids()['sampler.0']}, attempt 2)\n")
        shown = milepost(tmp_path, "roles")
        assert shown.output.splitlines()[0].split() == ["PROCESS", "STANDING", "PID", "ATTEMPT", "WHY"]
        assert shown.output.splitlines()[1].split()[:2] == ["service.0", "ready"]
        assert "ordered: it is slow" in shown.output
        document = json.loads(milepost(tmp_path, "roles", "--json").output)
        assert {f"{each['role']}.{each['index']}": each["pid"] for each in document["processes"]} == there.pids()
        for words, code, hint in (
            (("restart", "nobody"), 10, "hint: its roles: service, trainer, sampler"),
            (("restart", "sampler", "9"), 10, "hint: they are numbered from 0 to 1"),
            (("restart", "all", "1"), 2, "hint: milepost restart all"),
        ):
            refused = milepost(tmp_path, *words)
            assert (refused.exit_code, refused.output.splitlines()[-1]) == (code, hint)
    gone = milepost(tmp_path, "restart", "sampler", "0")
    assert (gone.exit_code, gone.output.splitlines()[0]) == (10, "error: no milepost up listens there")


def test_a_second_one_of_the_same_pipeline_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with up(tmp_path, RL) as there:
        there.there(*FIRST)
        before = there.pids()
        second = subprocess.run([*PROGRAM, "up"], cwd=tmp_path, capture_output=True, text=True)
        assert (second.returncode, second.stderr.splitlines()[0]) == (11, "error: this pipeline runs already")
        assert f"pid: {there.process.pid}" in second.stderr
        assert there.pids() == before


def test_one_that_is_killed_leaves_a_socket_that_the_next_takes_over_and_its_processes_are_told_to_leave(tmp_path: Path) -> None:
    with up(tmp_path, RL) as first:
        pids = first.there(*FIRST)
        kill(first.process.pid)
        first.ended()
        until(lambda: not any(map(is_alive, pids)))
        assert first.control.exists()
        assert sorted((tmp_path / "ended").read_text().split()) == sorted(name[:-2] for name in FIRST)
    for left in tmp_path.glob("there.*"):
        left.unlink()
    with started(tmp_path) as second:
        second.there(*FIRST)
        assert len(second.pids()) == 5


def test_one_that_is_never_ready_is_an_error_with_what_it_said_last(tmp_path: Path) -> None:
    text = '[role.a]\ncmd = WORKER\nready = "never"\nready_within = "0.5s"\n[role.b]\ncmd = WORKER\ndepends_on = "a"\n'
    with up(tmp_path, text) as there:
        assert there.ended() == 1
    assert f"error: a.0 was not ready within 0.5 s: nothing made {tmp_path}/never\n" in there.said
    assert "[up]   a.0 is there\n" in there.said
    assert not (tmp_path / "there.b.0.1").exists()


def test_an_address_is_ready_when_somebody_of_ours_listens_and_a_stranger_there_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        stranger.listen()
        listens = (
            f'["{sys.executable}", "-c", "import socket; socket.create_server((\'127.0.0.1\', {port})).accept()[0].recv(1)"]'
        )
        text = f'[role.a]\ncmd = {listens}\nready = "tcp://127.0.0.1:{port}"\n[role.b]\ncmd = WORKER\ndepends_on = "a"\n'
        with up(tmp_path, text) as there:
            assert there.ended() == 2
        assert "error: somebody listens at this address already" in there.said
    with up(tmp_path, text) as there:
        there.there("b.0.1")


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ('cmd = "no-such-program-at-all"', "error: the command of role b cannot be started: No such file or directory"),
        ('cmd = "true"\ncwd = "nowhere"', "error: the directory of role b is not there"),
    ],
)
def test_what_cannot_be_started_is_told_and_the_rest_ends_in_good_order(tmp_path: Path, role: str, says: str) -> None:
    with up(tmp_path, f'[role.a]\ncmd = WORKER\nready = "there.a.0.1"\n[role.b]\ndepends_on = "a"\n{role}\n') as there:
        assert there.ended() == 2
    assert says in there.said
    assert (tmp_path / "ended").read_text() == "a.0\n"


def test_a_budget_that_is_used_up_ends_everything_with_the_code_of_whom_it_was(tmp_path: Path) -> None:
    with up(tmp_path, RL.replace("count = 2", "count = 2\nmax_failures = 1")) as there:
        there.there(*FIRST)
        for attempt in (1, 2):
            there.there(f"sampler.1.{attempt}")
            there.go("sampler.1", 7)
        assert there.ended() == 7
    assert (tmp_path / "ended").read_text().split()[-1] == "service.0"


WANTS = """
import os, sys
from milepost.engine import supervised

supervised.leave_record(os.environ["MILEPOST_SUPERVISED"], f"retries-{os.getpid()}", {"retries": 1})
sys.exit(5)
"""


def test_a_trainer_says_how_many_failures_it_may_have_unless_its_role_does(tmp_path: Path) -> None:
    (tmp_path / "wants.py").write_text(WANTS)
    for given, attempts in (("", 2), ("max_failures = 2\n", 3)):
        with up(tmp_path, f'[role.a]\ncmd = ["{sys.executable}", "wants.py"]\n{given}') as there:
            before = there.said.count("pid ")
            assert there.ended() == 5
        assert there.said.count("pid ") - before == attempts, there.said
    assert there.said.count("a.0: it wants 1 restart after failures of its own (retries)") == 2


def test_two_that_are_killed_at_once_both_come_back(tmp_path: Path) -> None:
    with up(tmp_path, RL) as there:
        there.there(*FIRST)
        before = there.pids()
        os.kill(there.process.pid, signal.SIGSTOP)  # both have fallen when it looks again
        kill(before["sampler.0"])
        kill(before["trainer.0"])
        os.kill(there.process.pid, signal.SIGCONT)
        there.there("sampler.0.2", "trainer.0.2", "trainer.1.2")
        assert changed(before, there.pids()) == {"sampler.0", "trainer.0", "trainer.1"}


LEAVES = """
import os, subprocess, threading
from pathlib import Path

name = f"left.{os.environ['MILEPOST_INDEX']}.{os.environ['MILEPOST_ATTEMPT']}"
left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
# One that has ended before anybody has looked: it comes to milepost up as nobody's.
subprocess.run(["sh", "-c", "(setsid true &)"], start_new_session=True)
Path(f"new.{name}").write_text(str(left.pid))
os.replace(f"new.{name}", f"there.{name}")
threading.Event().wait()
"""


def test_what_a_worker_has_daemonized_goes_with_it_and_that_of_another_stays(tmp_path: Path) -> None:
    # Whatever is left behind has some seconds to end by itself.
    (tmp_path / "leaves.py").write_text(LEAVES)
    with up(tmp_path, f'[role.a]\ncmd = ["{sys.executable}", "leaves.py"]\ncount = 2\n') as there:
        mine, other = there.there("left.0.1", "left.1.1")
        kill(there.pids()["a.0"])
        until(lambda: not is_alive(mine))
        there.there("left.0.2")
        assert is_alive(other)
        until(lambda: not zombies_of(there.process.pid))


def zombies_of(pid: int) -> list[int]:
    return [each.pid for each in processes().values() if each.parent == pid and each.has_ended]


def test_a_service_in_the_same_process_has_its_decisions_carried_out(tmp_path: Path) -> None:
    (tmp_path / "worker.sh").write_text(WORKER)
    (tmp_path / "pipeline.toml").write_text('[role.a]\ncmd = ["sh", "worker.sh"]\ncount = 2\n')
    answers: list[Any] = []

    def decide() -> None:
        try:
            until((tmp_path / "there.a.1.1").exists)
            answers.append(pipeline.carry_out(RestartWorker("a", 1, why="it sends nothing"), timeout_s=120.0))
        finally:
            pipeline.stop()

    deciding = threading.Thread(target=decide, name="decides")
    plan = read_plan(tmp_path / "pipeline.toml")
    with launched(plan, limits=Limits(backoff_s=(0.0, 0.0))) as pipeline:
        deciding.start()
        end = pipeline.run()
        deciding.join()
    assert [(each.index, each.attempt) for each in answers[0].standings] == [(1, 2)]
    assert (end.exit_code, end.starts) == (0, 3)


HANGS = """
import threading
import numpy as np
import milepost

with milepost.CheckpointEngine("run", state={"extra": {"w": np.zeros(2)}}) as engine:
    found = engine.resume()
    engine.save_if_due(1)
    engine.save(1)
    engine.wait()
    if found is None:
        threading.Event().wait()
"""


def test_a_role_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    # The interpreter is started twice, with numpy: some seconds.
    (tmp_path / "hangs.py").write_text(HANGS)
    text = f'[role.a]\ncmd = ["{sys.executable}", "hangs.py"]\nhang_after = "1s"\ngrace = "1s"\n'
    with up(tmp_path, text) as there:
        assert there.ended() == 0
    kinds = [(event["event"], event.get("kind")) for event in there.events()]
    assert ("ended", "hang") in kinds
    assert ("ended", "done") in kinds
