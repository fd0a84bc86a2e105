from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import UsageError
from milepost.supervise import notices
from milepost.supervise.notice_watch import NoticeWatch, Watched
from milepost.supervise.notices import AZURE_S, EC2_S, GCP_S, Notice, Unclear, notice_in, source_of

Answer = Callable[[str, str, dict[str, str]], tuple[int, str]]


class Server:
    """Answer as ``answer`` says, and remember what was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda method, path, headers: (404, "")
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Requests(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((self.command, self.path))
                status, text = outer.answer(self.command, self.path, headers)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, name="server", daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # A proxy that is set would be asked for 127.0.0.1, too.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    yield made
    made.close()


AT_NS = 1_800_000_000_000_000_000  # 2027-01-15T08:00:00Z


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("", Notice()),
        ("the machine goes", Notice()),
        ("90s", Notice(within_s=90.0)),
        ("120", Notice(within_s=120.0)),
        ("1800000000", Notice(AT_NS)),
        ("1800000000000", Notice(AT_NS)),
        ("2027-01-15T08:00:00Z", Notice(AT_NS)),
        ("2027-01-15T09:00:00+01:00\n", Notice(AT_NS)),
        ("Fri, 15 Jan 2027 08:00:00 GMT", Notice(AT_NS)),
        ('{"action": "terminate", "time": "2027-01-15T08:00:00Z"}', Notice(AT_NS)),
        ('{"deadline": 1800000000.0}', Notice(AT_NS)),
        ('{"deadline": "2m"}', Notice(within_s=120.0)),
        ('{"time": "soon", "NotBefore": "2027-01-15T08:00:00Z"}', Notice(AT_NS)),
        ('{"deadline": null}', Notice()),
        ("[1, 2]", Notice()),
        ("true", Notice()),
        ("-5", Notice()),
        ("NaN", Notice()),
        ("1e999", Notice()),
        ("[" * 100_000, Notice()),
        ('{"time":' + "9" * 305 + "}", Notice(10**21)),
    ],
)
def test_what_a_notice_says_of_its_deadline(text: str, notice: Notice) -> None:
    assert notice_in(text) == notice


@given(
    st.text()
    | st.recursive(st.none() | st.floats() | st.integers() | st.text(), lambda v: st.dictionaries(st.text(), v)).map(json.dumps)
)
def test_whatever_a_notice_says_it_is_one(text: str) -> None:
    found = notice_in(text)
    assert found.within_s is None or found.within_s >= 0


def test_a_file_is_a_notice_as_long_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = source_of("preempt")
    monkeypatch.chdir("/")
    assert source.look() is None
    (tmp_path / "preempt").write_text("45s")
    assert source.look() == Notice(within_s=45.0)
    (tmp_path / "preempt").unlink()
    assert source.look() is None
    os.mkfifo(tmp_path / "preempt")  # to read it would be to wait
    assert source.look() == Notice()


@pytest.mark.parametrize("text", ["", "false", "NONE", "null\n", "{}", "0"])
def test_a_url_that_answers_no_is_no_notice(server: Server, text: str) -> None:
    server.answer = lambda *_: (200, text)
    assert source_of(server.url + "/preempt").look() is None


def test_a_url_is_a_notice_once_it_answers(server: Server) -> None:
    source = source_of(server.url + "/preempt")
    for status in (404, 410, 204):
        server.answer = lambda *_, status=status: (status, "")  # type: ignore[misc]
        assert source.look() is None
    server.answer = lambda *_: (500, "")
    with pytest.raises(Unclear, match="500"):
        source.look()
    server.answer = lambda *_: (200, '{"deadline": "60s"}')
    assert source.look() == Notice(within_s=60.0)


def test_amazons_notice_is_asked_for_with_a_token_that_is_renewed(server: Server) -> None:
    tokens = iter(["first", "second"])
    valid = {"first", "second"}

    def answer(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if (method, path) == ("PUT", "/latest/api/token"):
            assert headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            return 200, next(tokens)
        assert (method, path) == ("GET", "/latest/meta-data/spot/instance-action")
        return (status, text) if headers["x-aws-ec2-metadata-token"] in valid else (401, "")

    server.answer = answer
    source = source_of("ec2", base=server.url)
    status, text = 404, ""
    assert source.look() is None
    valid.remove("first")
    assert source.look() is None
    assert source.look() is None
    assert [method for method, _ in server.asked] == ["PUT", "GET", "GET", "PUT", "GET", "GET"]
    status, text = 200, '{"action": "terminate", "time": "2027-01-15T08:00:00Z"}'
    assert source.look() == Notice(AT_NS)
    text = "terminate"
    assert source.look() == Notice(within_s=EC2_S)


def test_without_a_token_amazons_notice_is_unclear(server: Server) -> None:
    server.answer = lambda *_: (403, "")
    with pytest.raises(Unclear, match="no session token: status 403"):
        source_of("ec2", base=server.url).look()


def test_googles_notice_needs_its_header_and_says_true_or_false(server: Server) -> None:
    said = "FALSE"

    def answer(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        assert path == "/computeMetadata/v1/instance/preempted"
        return (200, said) if headers.get("metadata-flavor") == "Google" else (403, "")

    server.answer = answer
    source = source_of("gcp", base=server.url)
    assert source.look() is None
    said = "TRUE\n"
    assert source.look() == Notice(within_s=GCP_S)
    said = "<html>a captive portal</html>"
    with pytest.raises(Unclear, match="not TRUE or FALSE"):
        source.look()


AZURE = {
    "preempted": ([{"EventType": "Preempt", "Resources": ["me"], "NotBefore": "Fri, 15 Jan 2027 08:00:00 GMT"}], Notice(AT_NS)),
    "the earliest of two": (
        [
            {"EventType": "Reboot", "Resources": ["me", "you"], "NotBefore": "Fri, 15 Jan 2027 09:00:00 GMT"},
            {"EventType": "Terminate", "Resources": ["me"], "NotBefore": "Fri, 15 Jan 2027 08:00:00 GMT"},
        ],
        Notice(AT_NS),
    ),
    "begun": (
        [{"EventType": "Preempt", "EventStatus": "Started", "Resources": ["me"], "NotBefore": ""}],
        Notice(within_s=AZURE_S),
    ),
    "another's": ([{"EventType": "Preempt", "Resources": ["you"], "NotBefore": ""}], None),
    "a freeze": ([{"EventType": "Freeze", "Resources": ["me"], "NotBefore": ""}], None),
    "over": ([{"EventType": "Reboot", "EventStatus": "Completed", "Resources": ["me"]}], None),
    "nothing": ([], None),
}


@pytest.mark.parametrize("case", AZURE)
def test_microsofts_events_are_notices_where_they_end_this_machine(server: Server, case: str) -> None:
    events, notice = AZURE[case]

    def answer(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        assert headers["metadata"] == "true"
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, "me"
        assert path == "/metadata/scheduledevents?api-version=2020-07-01"
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": events})

    server.answer = answer
    assert source_of("azure", base=server.url).look() == notice


def test_an_answer_that_is_no_list_of_events_is_unclear(server: Server) -> None:
    server.answer = lambda *_: (200, "[]")
    with pytest.raises(Unclear, match="no list of events"):
        source_of("azure", base=server.url).look()


def test_a_server_that_is_not_there_or_says_nothing_is_unclear(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    monkeypatch.setattr(notices, "TIMEOUT_S", 0.05)
    server.answer = lambda *_: (200, str(silent.wait(60)))
    with pytest.raises(Unclear):
        source_of(server.url).look()
    silent.set()
    with pytest.raises(Unclear):
        source_of("http://127.0.0.1:1/x").look()


def test_a_server_whose_answer_never_ends_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drips(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(notices, "ANSWER_S", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Drips)
    asked = threading.Thread(target=server.handle_request)
    asked.start()
    with pytest.raises(Unclear, match="takes too long"):
        source_of(f"http://127.0.0.1:{server.server_address[1]}").look()
    asked.join()
    server.server_close()


@pytest.mark.parametrize("notice", ["ftp://host/x", "", " ", "http://", "a\0b"])
def test_what_is_no_place_is_refused(notice: str) -> None:
    with pytest.raises(UsageError) as caught:
        source_of(notice)
    assert caught.value.kind == "bad-notice"


class Scripted:
    """Answer with what a list says."""

    name = "scripted"

    def __init__(self, *answers: Notice | Exception | None) -> None:
        self.answers = list(answers)

    def look(self) -> Notice | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_only_news_is_told_and_trouble_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told: list[Notice | None] = []
    here = Notice(within_s=30.0)
    looks = (None, Unclear("down"), Unclear("down"), here, here, Notice(), Unclear("down"), here, None)
    watched = Watched(Scripted(*looks), told.append)
    for _ in looks:
        watched.look()
    assert told == [here, None]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING", "INFO"]


def test_a_look_that_fails_is_told_once_and_the_next_is_made(caplog: pytest.LogCaptureFixture) -> None:
    found = threading.Event()
    watch = NoticeWatch(0.001)
    watch.add(Scripted(KeyError("a fault of ours"), KeyError("again"), Notice()), lambda _: (found.set(), watch.end()))
    watch.start()
    assert found.wait(60)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "looking for a notice failed (scripted)" in caplog.text
