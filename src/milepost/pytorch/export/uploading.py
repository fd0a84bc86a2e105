"""Send finished exports to the Hugging Face Hub by its own client, beside training; what fails there ends nothing here."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.errors import MissingExtraError, UsageError
from milepost.text import plain
from milepost.threads import Member

log = logging.getLogger("milepost")

_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 120.0
_HOPELESS = (400, 401, 402, 403, 404, 405)
"""Answers that stay the same however often one asks: no such place, no right, no money."""
_STALE = ["*.safetensors", "*.safetensors.index.json"]
"""What an export before may have left in the repository and this one may lack: it had more files."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Say which exports go to the Hub, and where to. Access is the client's own business: ``hf auth login``, or ``HF_TOKEN``."""

    repo_id: str
    engine: str = "default"
    """Whose exports: those of the others stay here."""
    private: bool = True
    """How the repository is made if there is none."""
    revision: str | None = None
    tries: int = 8
    close_wait_s: float = 600.0
    """How long `Saver.close` waits for what is under way; after that it says so, and the upload is left alone."""
    client: Any = None
    """A ``huggingface_hub.HfApi`` of your own; else one is made."""


def client_of(upload: Upload) -> Any:
    """Return the client. Raises `MissingExtraError` where there is none, at the start and not after hours."""
    if upload.tries < 1:
        raise UsageError("an upload is tried once at least", kind="bad-upload", hint="Upload(tries=8)", tries=upload.tries)
    if upload.client is not None:
        return upload.client
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtraError("hf", "huggingface_hub") from error
    return HfApi()


class Uploads:
    """Send one export at a time. While one is on its way only the newest of the others waits: the Hub gets the newest."""

    def __init__(self, upload: Upload, wait: Callable[[threading.Event, float], bool] | None = None) -> None:
        self._upload = upload
        self._client = client_of(upload)
        self._wait = wait or threading.Event.wait
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._waiting: tuple[str, str] | None = None
        self._sending: str | None = None
        self._thread: Member | None = None
        self.sent: str | None = None
        """The path of the export that was sent last."""
        self.failure = ""
        """What the last attempt failed with; empty if it did not."""

    def offer(self, path: str, message: str) -> None:
        """Send a finished export as soon as its turn comes."""
        with self._lock:
            if self._waiting is not None:
                log.info("[upload] a newer export is sent instead of %s", self._waiting[0])
            self._waiting = (path, message)
            if self._thread is None:
                # A daemon: a Hub that answers nobody must not keep a finished run from ending.
                self._thread = Member(self._run, "milepost-upload")
                self._thread.start()

    def busy(self) -> set[str]:
        """Return the paths that are being read, or will be."""
        with self._lock:
            return {path for path in (self._sending, self._waiting and self._waiting[0]) if path}

    def close(self) -> None:
        """Wait for what is under way, so long as `Upload.close_wait_s` says. Never raises for what the Hub does."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.wait(self._upload.close_wait_s)
        self._stop.set()
        if thread is not None and thread.works:
            log.warning("[upload] not waited for any longer: %s", ", ".join(sorted(self.busy())))

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._waiting is None or self._stop.is_set():
                    self._thread = None
                    return
                path, message = self._waiting
                self._waiting, self._sending = None, path
            self.failure = self._send_again_and_again(path, message)
            if not self.failure:
                self.sent = path
            with self._lock:
                self._sending = None

    def _send_again_and_again(self, path: str, message: str) -> str:
        wait_s, told = _FIRST_WAIT_S, ""
        for attempt in range(1, self._upload.tries + 1):
            try:
                self._send(path, message)
            except Exception as error:  # noqa: BLE001 - a client of its own, over a network: whatever it raises ends no training
                told = plain(f"{type(error).__name__}: {error}".partition("\n")[0])
                log.warning("[upload] attempt %d of %d failed: path=`%s` %s", attempt, self._upload.tries, path, told)
                if not _is_worth_a_retry(error) or not os.path.isdir(path) or attempt == self._upload.tries:
                    break
                if self._wait(self._stop, wait_s):
                    break
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                log.info("[upload] sent path=`%s` repo=`%s`", path, self._upload.repo_id)
                return ""
        log.warning("[upload] given up; the export itself is safe: path=`%s` repo=`%s`", path, self._upload.repo_id)
        return told

    def _send(self, path: str, message: str) -> None:
        upload = self._upload
        self._client.create_repo(upload.repo_id, private=upload.private, exist_ok=True)
        self._client.upload_folder(
            repo_id=upload.repo_id,
            folder_path=path,
            commit_message=message,
            revision=upload.revision,
            delete_patterns=_STALE,
        )


def _is_worth_a_retry(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status not in _HOPELESS
