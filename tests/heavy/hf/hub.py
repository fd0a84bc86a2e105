"""Be as much of the Hub as its client needs to upload a folder: a repository, what to send how, commits. On this machine."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Repositories:
    """Hold what was committed, and say how often to fail first."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.failures = 0


class Answering(BaseHTTPRequestHandler):
    hub: Repositories

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        pass

    def do_GET(self) -> None:
        self.hub.asked.append(f"GET {self.path}")
        files = [{"rfilename": name} for name in self.hub.files]
        tree = [{"type": "file", "path": name, "oid": "0" * 40, "size": len(data)} for name, data in self.hub.files.items()]
        if "/tree/" in self.path:
            self.answer(200, tree)
        else:
            self.answer(200, {"id": "me/policy", "sha": "0" * 40, "private": True, "siblings": files, "tags": []})

    def do_POST(self) -> None:
        self.hub.asked.append(f"POST {self.path}")
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else b"".join(self.chunks())
        if self.path.endswith("/api/repos/create"):
            self.answer(200, {"url": f"http://{self.headers['Host']}/me/policy", "id": "me/policy", "name": "me/policy"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answers = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names]
            self.answer(200, {"files": answers})
        elif "/commit/" in self.path:
            if self.hub.failures:
                self.hub.failures -= 1
                self.answer(501, {"error": "not now"})
            else:
                self.commit([json.loads(line) for line in body.splitlines()])
        else:
            self.answer(404, {"error": self.path})

    def chunks(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.hub.messages.append(value["summary"])
            elif line["key"] == "file":
                self.hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.hub.files[value["path"]]
        url = f"http://{self.headers['Host']}/me/policy/commit/{'1' * 40}"
        self.answer(200, {"commitUrl": url, "commitOid": "1" * 40, "pullRequestUrl": None})

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[tuple[Repositories, str]]:
    """Serve a hub; give it and its address."""
    hub = Repositories()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Answering,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, name="hub")
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
