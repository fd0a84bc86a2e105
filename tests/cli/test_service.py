"""`milepost serve`, `status`, `top`, `fetch`, `rollback` and `unhold`: of a real service, and of what one has left."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from milepost.cli.main import main
from milepost.clock import SystemClock
from milepost.errors import ServiceError, StoreError
from milepost.service import Client, Tls, connect
from milepost.service.adopting import open_service
from milepost.service.asking import reach_of
from milepost.service.endpoint import read_endpoint, this_process, write_endpoint
from milepost.service.looking import look
from milepost.service.resting import at_rest, read_rest
from milepost.service.server.serving import Server
from milepost.store.local import LocalStore
from tests.cli.serving import FAILS_AFTER_S, MAIN, Serving, environment, forget, serving
from tests.service.leftovers import nothing_outlives_the_tests
from tests.service.server.test_tls import keys

__all__ = ["keys", "nothing_outlives_the_tests"]  # fixtures, found by their names
WEIGHTS = {"0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "0.bias": np.ones(3, np.float32)}
MOMENTS = {"step": np.array(7)}


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = milepost(*arguments, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("MILEPOST_SERVICE", "MILEPOST_SERVICE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "ppo"
    root.mkdir()
    yield root
    forget(root)


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with Server(root) as server:
        yield server


@pytest.fixture
def trainer(root: Path, server: Server) -> Iterator[Client]:
    with connect(root, component="trainer", role="trainer") as client:
        yield client


def filled(root: Path, *steps: int) -> None:
    """Let a service have versions of these steps, durable, and end."""
    with Server(root), connect(root, component="trainer", role="trainer") as client:
        for step in steps:
            client.commit(step, WEIGHTS, parts={"optimizer": MOMENTS}, durable=True)


def everything(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


class TestServe:
    def test_it_says_where_it_is_what_happens_and_that_it_ended(self, root: Path, tmp_path: Path) -> None:
        with serving(root, "--log", str(tmp_path / "log")) as served:
            with connect(root, component="trainer", role="trainer") as trainer:
                trainer.commit(120, WEIGHTS, durable=True)
                trainer.commit(121, WEIGHTS, durable=True)
                trainer.rollback(1, "reward collapsed")
                trainer.hold()
                trainer.resume()
            assert served.end() == 0
        first, *rest = served.lines
        assert first.endswith("term 1): no version yet")
        assert first.startswith(f"[serve] run {read_endpoint(root).run_id} serves at 127.0.0.1:")
        assert rest[0] == "[serve] trainer has joined as a trainer"
        for line in (
            "[serve] back to v1: reward collapsed; what came after it is a lost branch",
            "[serve] trainer holds: nobody is given weights until it resumes",
            "[serve] trainer holds no more",
            "[serve] trainer has left",
        ):
            assert line in rest
        assert not any("is live" in line or "is on disk" in line for line in rest)  # that is summed up
        assert any(line.startswith("[serve] live v") for line in rest)
        assert rest[-1].startswith("[serve] ended in good order; versions in memory stay there for the next start; ")
        assert rest[-1].endswith(f"; milepost unload {root} gives that memory back")
        log = [json.loads(line)["text"] for line in (tmp_path / "log").read_text().splitlines()]
        assert {"v1 is live: step 120, 4 KiB, from trainer", "v2 is live: step 121, 4 KiB, from trainer", "v1 is on disk"} <= {
            *log
        }

    def test_it_says_once_that_the_disk_refuses_and_once_that_it_does_no_more(self, root: Path) -> None:
        with serving(root, "--retry", "0.05s") as served, connect(root, component="trainer", role="trainer") as trainer:
            versions = root / "service" / "versions"
            versions.write_text("a file, where a directory is to be")
            with pytest.raises(StoreError, match="could not be written to disk"):
                trainer.commit(120, WEIGHTS, durable=True)
            served.line_with("a version cannot be brought to disk: ")
            trainer.commit(121, WEIGHTS)
            versions.unlink()
            served.line_with("versions are brought to disk again")
            assert served.end() == 0
            assert sum("cannot be brought" in line for line in served.lines) == 1

    def test_the_next_one_says_with_what_it_begins_at_the_same_address(self, root: Path) -> None:
        filled(root, 120)
        address = read_endpoint(root).address
        with serving(root) as served:
            assert served.lines[0].endswith("term 2): live v1 step 120, durable v1")
            assert f"serves at {address} " in served.lines[0]

    def test_in_json_each_event_is_a_line_and_the_log_has_the_same(self, root: Path, tmp_path: Path) -> None:
        with serving(root, "--json", "--log", str(tmp_path / "log")) as served:
            assert served.end() == 0
        events = [json.loads(line) for line in served.lines]
        assert [event["event"] for event in events] == ["ready", "over"]
        assert events[0]["message_type"] == "serve_event"
        assert (events[0]["pid"], events[0]["live"]) == (served.process.pid, None)
        assert (tmp_path / "log").read_text().splitlines() == served.lines

    def test_a_ctrl_c_while_it_begins_ends_it(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        struck = threading.Event()

        def strike(*_: object) -> None:
            struck.set()
            raise KeyboardInterrupt

        def opened(*given: Any, **more: Any) -> Any:
            found = open_service(*given, **more)
            os.kill(os.getpid(), signal.SIGINT)
            assert struck.wait(FAILS_AFTER_S)
            return found

        before = signal.signal(signal.SIGINT, strike)
        try:
            monkeypatch.setattr("milepost.service.server.serving.open_service", opened)
            assert milepost("serve", root).exit_code == 130
        finally:
            signal.signal(signal.SIGINT, before)
            monkeypatch.undo()
        with Server(root):
            pass  # and has given the root up

    def test_a_damaged_journal_is_refused_with_the_option_that_goes_back(self, root: Path) -> None:
        filled(root, 118)
        journal = root / "service" / "journal.sqlite3"
        data = bytearray(journal.read_bytes())
        data[4096:4396] = bytes(300)
        journal.write_bytes(data)
        refused = milepost("serve", root)
        assert (refused.exit_code, "--restore" in refused.stderr) == (13, True), refused.stderr
        with serving(root, "--restore") as served:
            assert served.lines[-1].endswith("live v1 step 118, durable v1")

    def test_a_second_one_is_refused_with_the_pid_of_the_first(self, root: Path) -> None:
        with serving(root) as served:
            done = subprocess.run(
                [*MAIN, "serve", str(root)],
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                timeout=FAILS_AFTER_S,
                check=False,
            )
        assert done.returncode == 11
        assert "error: another service has this root" in done.stderr
        assert f"pid: {served.process.pid}" in done.stderr

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--bind", "0.0.0.0"), "--tls-cert and --tls-key"),
            (("--bind", "0.0.0.0", "--no-token"), "--insecure"),
            (("--bind", "here:99999"), "--bind 127.0.0.1"),
            (("--memory", "8 pages"), "is not a size"),
            (("--lease", "soon"), "is not a length of time"),
            (("--transport", "pigeon"), "one of auto, shm"),
            (("--incremental-threshold", "some"), "a fraction like 0.3"),
            (("--tls-cert", "nowhere.pem"), "--tls-cert is a file"),
        ],
    )
    def test_what_cannot_be_is_said_in_the_words_of_the_command_line(
        self, root: Path, options: tuple[str, ...], said: str
    ) -> None:
        result = milepost("serve", root, *options)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
        assert os.listdir(root) == []

    def test_its_settings_are_those_of_the_service(self, root: Path) -> None:
        with serving(
            root, "--memory", "3MiB", "--disk-keep", "2", "--heartbeat", "1s", "--bind", "localhost", "--json"
        ) as served:
            assert document("status", root)["memory_limit_bytes"] == 3 << 20
            with connect(root, component="trainer", role="trainer") as trainer:
                for step in range(4):
                    trainer.commit(step, WEIGHTS, durable=True)
                served.line_with("v2 has left the disk")

    def test_every_setting_of_the_service_is_an_option(self) -> None:
        from milepost.cli.serve import serve
        from milepost.service.settings import ServiceSettings

        given = {parameter.name for parameter in serve.params}
        otherwise = {"backend", "host", "port", "token"}  # there is one; --bind; --no-token, and its file
        assert {field.name for field in dataclasses.fields(ServiceSettings)} - given == otherwise


class TestStatus:
    def test_it_shows_the_pointers_the_versions_and_who_is_there(self, root: Path, trainer: Client) -> None:
        trainer.commit(118, WEIGHTS, durable=True)
        with connect(root, component="sampler-0", role="sampler") as sampler:
            with sampler.fetch() or pytest.fail("nothing was there"):
                pass
            trainer.commit(120, WEIGHTS, durable=True)
            lines = milepost("status", root).stdout.splitlines()
            found = document("status", root)
        assert lines[1].startswith("live     v2  step 120  4 KiB  ")
        (line,) = [line for line in lines if line.startswith("sampler-0")]
        assert "v1   1 version, 2 steps" in line
        assert (found["message_type"], found["running"], found["pid"]) == ("service", True, os.getpid())
        assert (found["live"]["version"], found["durable"]["version"]) == ("v2", "v2")
        assert [each["state"] for each in found["versions"]] == ["live durable", ""]
        assert found["versions"][0]["parent"] == "v1"
        (there,) = [each for each in found["components"] if each["component"] == "sampler-0"]
        assert (there["has"]["version"], there["versions_behind"], there["steps_behind"]) == ("v1", 1, 2)

    def test_the_address_and_the_environment_name_it_as_well(
        self, root: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = root / "service" / "token"
        assert milepost("status", server.address, "--token-file", token).exit_code == 0
        refused = milepost("status", server.address)
        assert (refused.exit_code, "token" in refused.stderr) == (2, True)
        monkeypatch.setenv("MILEPOST_SERVICE", str(root))
        assert milepost("status").exit_code == 0
        monkeypatch.delenv("MILEPOST_SERVICE")
        nobody = milepost("status")
        assert (nobody.exit_code, "set MILEPOST_SERVICE" in nobody.stderr) == (2, True)

    def test_of_one_that_has_ended_it_reads_what_is_there_and_changes_nothing(self, root: Path) -> None:
        filled(root, 118, 120)
        before = everything(root)
        result = milepost("status", root)
        assert result.exit_code == 1
        first, *_, last = result.stdout.splitlines()
        assert first.startswith("not running since 20")
        assert first.endswith("Z; live v2 step 120, durable v2")
        assert last == f"milepost serve {root} goes on from there"
        assert document("status", root, code=1)["running"] is False
        assert everything(root) == before

    def test_of_one_that_was_killed_it_says_so_and_what_the_next_will_begin_with(self, root: Path) -> None:
        with serving(root) as served:
            with connect(root, component="trainer", role="trainer") as trainer:
                trainer.commit(120, WEIGHTS)
            served.kill()
        before = everything(root)  # also the log of a journal that nobody has closed
        assert f"{root}/service/journal.sqlite3-wal" in before
        first = milepost("status", root).stdout.splitlines()[0]
        assert first.startswith("not running, killed after 20")
        said = document("status", root, code=1)
        assert everything(root) == before
        with Server(root) as server:
            assert server.live is not None
            assert said["live"]["version"] == str(server.live.at) == "v1"
            assert (said["durable"] or {}).get("version") == (server.durable and str(server.durable.at))

    def test_of_one_that_is_about_to_serve_it_says_so(self, root: Path) -> None:
        filled(root, 118)
        with LocalStore(root / "service", SystemClock()).guard(wait_s=0, take_over=False):
            first, *_, last = milepost("status", root).stdout.splitlines()
        assert first.startswith(f"not answering yet: pid {os.getpid()} has the root since 20")
        assert last == "it begins, or ends, just now: look again"

    def test_where_none_has_ever_begun_it_says_how_to_begin_one(self, root: Path, tmp_path: Path) -> None:
        result = milepost("status", root)
        assert (result.exit_code, f"milepost serve {root} begins one" in result.stderr) == (10, True)
        nowhere = milepost("status", tmp_path / "nowhere")
        assert (nowhere.exit_code, "there is no such run root" in nowhere.stderr) == (10, True)

    def test_of_a_process_that_is_there_and_does_not_answer_it_says_which(self, root: Path) -> None:
        filled(root, 118)
        boot, pid, start_time = this_process()
        alive = dataclasses.replace(
            read_endpoint(root), address="127.0.0.1:1", boot_id=boot, pid=pid, start_time=start_time, has_ended=False
        )
        write_endpoint(LocalStore(root / "service", SystemClock()), alive)
        result = milepost("status", root)
        assert result.exit_code == 1
        first, *_, last = result.stdout.splitlines()
        assert first.startswith(f"no answer from pid {pid} at 127.0.0.1:1 (")
        assert first.endswith("Connection refused); live v1 step 118, durable v1")
        assert last == f"kill -9 {pid} is safe at any moment; then milepost serve {root} goes on from there"
        write_endpoint(LocalStore(root / "service", SystemClock()), dataclasses.replace(alive, boot_id="another"))
        first, *_, last = milepost("status", root).stdout.splitlines()
        assert first.startswith("no answer from 127.0.0.1:1, where a process of another machine has listened (")
        assert last.startswith("if that machine is gone: milepost serve ")

    def test_a_damaged_journal_is_named_and_not_touched(self, root: Path) -> None:
        filled(root, 118)
        journal = root / "service" / "journal.sqlite3"
        data = bytearray(journal.read_bytes())
        data[4096:4396] = bytes(300)
        journal.write_bytes(data)
        before = everything(root)
        assert milepost("status", root).exit_code == 13
        assert everything(root) == before


class TestUnload:
    def test_it_gives_back_what_status_says_is_kept_and_says_how_much(self, root: Path) -> None:
        filled(root, 118)
        (kept,) = [line for line in milepost("status", root).stdout.splitlines() if "are kept for the next start" in line]
        assert kept.endswith(f"; once the run is over milepost unload {root} gives them back")
        directory = Path(read_rest(str(root), SystemClock()).memory.directory)
        assert directory.is_dir()
        assert milepost("unload", root).stdout == f"gave back {kept.partition(' of memory')[0]} of memory\n"
        assert not directory.exists()
        assert milepost("unload", root).stdout == f"nothing of {root} is in this machine's memory\n"
        assert "milepost unload" not in milepost("status", root).stdout
        with Server(root) as server:
            assert (server.live and server.live.version.step, server.live) == (118, server.durable)

    def test_a_service_that_runs_keeps_its_memory(self, root: Path, trainer: Client) -> None:
        trainer.commit(118, WEIGHTS)
        refused = milepost("unload", root)
        assert (refused.exit_code, f"pid: {os.getpid()}" in refused.stderr) == (11, True), refused.stderr
        assert document("status", root)["memory_bytes"] > 0

    def test_in_json_it_names_what_it_brought_to_disk(self, root: Path) -> None:
        filled(root, 118)
        shutil.rmtree(root / "service" / "versions")
        found = document("unload", root)
        assert [each["version"] for each in found["brought_to_disk"]] == ["v1"]
        assert found["freed_bytes"] > 0
        assert document("status", root, code=1)["durable"]["version"] == "v1"

    def test_where_no_service_was_it_says_so(self, root: Path, tmp_path: Path) -> None:
        assert milepost("unload", root).exit_code == 10
        assert milepost("unload", tmp_path / "nowhere").exit_code == 10


class TestTop:
    def test_in_a_pipe_it_looks_twice_prints_once_and_says_what_moves(self, root: Path, trainer: Client) -> None:
        result = milepost("top", root, "--interval", "0.01s")
        assert result.exit_code == 0
        assert "0 commits/s  0 fetches/s  0 B/s" in result.stdout
        assert document("top", root, "--interval", "0.01s")["rates"] == {"commits_s": 0, "fetches_s": 0, "bytes_s": 0}

    def test_what_it_counts_is_there_from_the_first(self, root: Path, trainer: Client) -> None:
        trainer.commit(118, WEIGHTS)
        counts = document("status", root)["counts"]
        assert (counts["commits"], counts.get("fetches", 0)) == (1, 0)

    def test_what_is_left_of_a_service_is_read_once_until_somebody_writes(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(root, 118)
        reach, clock, read = reach_of(str(root)), SystemClock(), []
        monkeypatch.setattr("milepost.service.looking.at_rest", lambda *given: read.append(1) or at_rest(*given))
        first = look(reach, clock)
        assert look(reach, clock, first) is first
        os.utime(root / "service" / "endpoint.json", (2e9, 2e9))
        assert look(reach, clock, first) is not first
        assert len(read) == 2

    def test_in_a_terminal_it_draws_over_itself_until_ctrl_c_and_leaves_what_it_showed(self, root: Path, server: Server) -> None:
        terminal, side = pty.openpty()
        process = subprocess.Popen(
            [*MAIN, "top", str(root), "--interval", "0.01s"], stdin=side, stdout=side, stderr=side, env=environment()
        )
        os.close(side)
        with process, open(terminal, "rb", buffering=0) as screen:
            try:
                seen = b""
                while seen.count(b"\x1b[H") < 3:
                    seen += screen.read(1 << 16)
                process.send_signal(signal.SIGINT)
                while b"\x1b[?1049l" not in seen:
                    seen += screen.read(1 << 16)
                after = seen.rpartition(b"\x1b[?1049l")[2] + _rest(screen)
                assert process.wait(FAILS_AFTER_S) == 0
            finally:
                process.kill()
        assert seen.startswith(b"\x1b[?1049h\x1b[H")
        assert b"commits/s" in seen
        assert after.startswith(b"run ")
        assert b"Traceback" not in seen + after


def _rest(screen: Any) -> bytes:
    seen = b""
    try:
        while data := screen.read(1 << 16):
            seen += data
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    return seen


class TestFetch:
    @pytest.mark.parametrize("is_served", [True, False])
    def test_it_writes_the_live_version_as_files_that_others_read(self, root: Path, tmp_path: Path, is_served: bool) -> None:
        filled(root, 118, 120)
        out = tmp_path / "out"
        if is_served:
            with Server(root):
                result = milepost("fetch", root, "--to", out)
        else:
            before = everything(root)
            result = milepost("fetch", root, "--to", out)
            assert everything(root) == before
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("v2 (step 120, ")
        assert result.stdout.endswith(f" is in {out}: optimizer.safetensors, weights.safetensors, version.json\n")
        loaded = load_file(out / "weights.safetensors")
        assert all((loaded[name] == value).all() for name, value in WEIGHTS.items())
        record = json.loads((out / "version.json").read_text())
        assert (record["version"], record["step"], record["parent"]) == ("v2", 120, "v1")
        assert record["files"] == {"optimizer": "optimizer.safetensors", "weights": "weights.safetensors"}

    @pytest.mark.parametrize("is_served", [True, False])
    def test_another_version_or_only_a_part_of_one_can_be_named(self, root: Path, tmp_path: Path, is_served: bool) -> None:
        filled(root, 118, 120, 121)
        served = Server(root) if is_served else None
        if served is not None:
            served.__enter__()
        try:
            for name, options in {"a": ("--at", "v1"), "b": ("--at", "1"), "c": ("--step", "118")}.items():
                told = document("fetch", root, "--to", tmp_path / name, "--part", "weights", *options)
                assert told["version"]["version"] == "v1"
                assert sorted(os.listdir(tmp_path / name)) == ["version.json", "weights.safetensors"]
            missing = milepost("fetch", root, "--to", tmp_path / "d", "--step", "117")
            assert (missing.exit_code, "nearest: --step 118" in missing.stderr) == (10, True)
            gone = milepost("fetch", root, "--to", tmp_path / "d", "--at", "v9")
            assert (gone.exit_code, "not kept here" in gone.stderr) == (10, True)
            no_part = milepost("fetch", root, "--to", tmp_path / "d", "--part", "critic")
            assert (no_part.exit_code, "it has optimizer, weights" in no_part.stderr) == (10, True)
            both = milepost("fetch", root, "--to", tmp_path / "d", "--at", "v1", "--step", "1")
            assert both.exit_code == 2
            assert milepost("fetch", root, "--to", tmp_path / "d", "--at", "latest").exit_code == 2
            assert not (tmp_path / "d").exists()
        finally:
            if served is not None:
                served.__exit__(None, None, None)

    def test_a_directory_that_holds_something_is_left_alone_unless_forced(self, root: Path, tmp_path: Path) -> None:
        filled(root, 118)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes").touch()
        refused = milepost("fetch", root, "--to", tmp_path / "out")
        assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
        assert os.listdir(tmp_path / "out") == ["notes"]
        assert milepost("fetch", root, "--to", tmp_path / "out", "--force").exit_code == 0
        assert len(os.listdir(tmp_path / "out")) == 4

    def test_a_damaged_part_on_disk_is_named_and_nothing_is_written(self, root: Path, tmp_path: Path) -> None:
        filled(root, 118)
        forget(root)  # of the copy in memory it would not even be noticed
        (part,) = root.glob("service/versions/*/weights.safetensors")
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)
        result = milepost("fetch", root, "--to", tmp_path / "out")
        assert (result.exit_code, "slot: weights" in result.stderr) == (13, True), result.output
        assert os.listdir(tmp_path) == ["ppo"]

    def test_of_a_run_without_a_version_it_says_so(self, root: Path, server: Server, tmp_path: Path) -> None:
        result = milepost("fetch", root, "--to", tmp_path / "out")
        assert (result.exit_code, "nothing has been committed yet" in result.stderr) == (10, True)


class TestRollback:
    def test_a_version_is_live_again_and_is_what_samplers_get(self, root: Path, trainer: Client) -> None:
        for step in (118, 119, 120):
            trainer.commit(step, WEIGHTS, durable=True)
        with connect(root, component="sampler-0", role="sampler") as sampler:
            assert sampler.fetch().at.number == 3  # type: ignore[union-attr]
            result = milepost("rollback", root, "v1", "--reason", "reward collapsed")
            assert (result.exit_code, result.stdout.splitlines()[0]) == (
                0,
                "v1 (step 118) is live again, and what came after it a lost branch; samplers get it with their next fetch",
            )
            assert sampler.fetch().at.number == 1  # type: ignore[union-attr]
        assert milepost("rollback", root, "v1").stdout == "v1 (step 118) is live already\n"
        assert document("rollback", root, "v1")["live"]["version"] == "v1"
        with pytest.raises(ServiceError, match="rolled back"):
            trainer.commit(121, WEIGHTS)
        lost = milepost("rollback", root, "v3")
        assert (lost.exit_code, "training has left this branch" in lost.stderr) == (1, True)
        never = milepost("rollback", root, "v9")
        assert (never.exit_code, "there never was such a version" in never.stderr) == (10, True)

    def test_without_a_service_it_says_how_to_start_one(self, root: Path) -> None:
        filled(root, 118)
        result = milepost("rollback", root, "v1")
        assert (result.exit_code, "milepost serve" in result.stderr) == (1, True)

    def test_a_number_alone_is_a_generation_of_the_run_and_the_service_is_named(self, root: Path) -> None:
        from tests.cli.runs import Run

        Run(root).saves([1, 2])
        filled(root, 118)
        result = milepost("rollback", root, "1", "--take-over")
        assert result.exit_code == 0, result.output
        assert "g000003 is the newest now" in result.stdout
        assert "its checkpoint service hands out what it did" in result.stdout

    def test_a_number_that_is_no_generation_may_have_been_meant_as_a_version(self, root: Path) -> None:
        filled(root, 118)
        result = milepost("rollback", root, "1")
        assert (result.exit_code, f"milepost rollback {root} v1" in result.stderr) == (10, True)


class TestUnhold:
    def test_what_a_trainer_that_is_gone_has_held_is_let_go(self, root: Path, server: Server) -> None:
        with connect(root, component="trainer", role="trainer") as trainer:
            trainer.commit(118, WEIGHTS)
            trainer.hold()
        with connect(root, component="sampler-0", role="sampler") as sampler:
            with pytest.raises(ServiceError) as held:
                sampler.fetch()
            assert held.value.kind == "held"
            assert milepost("status", root).stdout.splitlines()[-1].startswith("held by trainer: ")
            result = milepost("unhold", root)
            assert result.exit_code == 0, result.output
            assert result.stdout.splitlines() == ["trainer holds no more", "samplers go on with v1 (step 118)"]
            assert sampler.fetch().at.number == 1  # type: ignore[union-attr]
        assert milepost("unhold", root).output == "nobody holds; samplers get v1 (step 118)\n"
        assert document("unhold", root) == {
            "message_type": "unhold",
            "schema_version": 1,
            "root": str(root),
            "unheld": [],
            "live": "v1",
        }


def test_a_hold_outlives_the_service(root: Path) -> None:
    with Server(root), connect(root, component="trainer", role="trainer") as trainer:
        trainer.commit(118, WEIGHTS)
        trainer.hold()
    assert document("status", root, code=1)["held_by"] == "trainer"
    with serving(root) as served:
        assert isinstance(served, Serving)
        assert document("unhold", root)["unheld"] == ["trainer"]


@pytest.mark.parametrize(
    "words",
    [("serve", "x"), ("status", "x"), ("top", "x"), ("fetch", "x", "--to", "y"), ("rollback", "x", "v1"), ("unhold", "x")],
)
def test_without_grpc_each_verb_names_what_to_install(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    result = milepost(*words)
    assert (result.exit_code, "pip install 'milepost[service]'" in result.stderr) == (2, True), result.stderr


def test_over_tls_it_is_asked_by_who_trusts_its_certificate(root: Path, keys: Path, tmp_path: Path) -> None:
    options = ("--tls-cert", str(keys / "server.pem"), "--tls-key", str(keys / "server.key"), "--tls-ca", str(keys / "ca.pem"))
    trust = ("--tls-ca", keys / "ca.pem", "--tls-cert", keys / "client.pem", "--tls-key", keys / "client.key")
    with serving(root, *options):
        tls = Tls(str(keys / "ca.pem"), str(keys / "client.pem"), str(keys / "client.key"))
        with connect(root, component="trainer", role="trainer", tls=tls) as trainer:
            trainer.commit(118, WEIGHTS)
        assert document("status", root, *trust)["live"]["version"] == "v1"
        assert milepost("fetch", root, "--to", tmp_path / "out", *trust).exit_code == 0
        stranger = milepost("status", root, "--tls-ca", keys / "stranger.pem")
        assert stranger.exit_code == 1
        assert stranger.stdout.startswith("no trust in what answers at ")
        assert "--tls-ca names a file" in stranger.stdout
        assert "kill" not in stranger.stdout
        alone = subprocess.run(
            [*MAIN, "status", str(root)], capture_output=True, env=environment(), timeout=FAILS_AFTER_S, check=False
        )
        assert (alone.returncode, alone.stderr) == (1, b"")  # gRPC has no say of its own
        assert "unload" not in stranger.stdout  # it runs
        assert milepost("rollback", root, "v1", *trust).stdout == "v1 (step 118) is live already\n"


def test_where_versions_and_journal_lie_need_not_be_said_again(root: Path, tmp_path: Path) -> None:
    elsewhere = ("--disk", str(tmp_path / "disk"), "--journal", str(tmp_path / "journal"))
    with serving(root, *elsewhere) as served:
        with connect(root, component="trainer", role="trainer") as trainer:
            trainer.commit(118, WEIGHTS, durable=True)
        served.end()
    assert not list(root.glob("service/versions/*"))
    forget(root)  # what is on disk is all that is left
    assert document("status", root, code=1)["durable"]["version"] == "v1"
    with serving(root) as served:
        assert served.lines[0].endswith("live v1 step 118, durable v1")
