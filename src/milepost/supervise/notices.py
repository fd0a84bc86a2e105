"""Look where a platform tells that it will take the machine away: a file, a URL, or the metadata service of a cloud.

==========  ===========================================================  ==================  ==========================
notice      what is asked                                                it is there if      deadline, where none is told
==========  ===========================================================  ==================  ==========================
a path      the file                                                     it exists           the grace period
a URL       ``GET``                                                      200, and no "no"    the grace period
``ec2``     ``spot/instance-action``, with a session token               200                 120 s
``gcp``     ``instance/preempted``                                       ``TRUE``            30 s
``azure``   ``scheduledevents``, those of this machine                   any but ``Freeze``  30 s
==========  ===========================================================  ==================  ==========================
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from typing import Any, Protocol

from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of

TIMEOUT_S, ANSWER_S = 2.0, 5.0
_MOST_BYTES = 1 << 20
_NO = frozenset({"", "0", "false", "no", "none", "null", "{}", "[]"})
_NAMED = ("deadline", "time", "NotBefore", "not_before", "terminate_at")
"""What a notice in JSON may call its deadline."""
EC2_S, GCP_S, AZURE_S = 120.0, 30.0, 30.0


@dataclass(frozen=True, slots=True)
class Notice:
    """Say that the machine will be taken away."""

    deadline_wall_ns: int | None = None
    """When, by the wall clock; None: it does not say."""
    within_s: float | None = None
    """How long it leaves, from when it is first seen; None: it does not say."""


class Unclear(Exception):
    """Say that it cannot be told whether there is a notice: nobody answers, or not in the form that was agreed on."""


class Source(Protocol):
    """Be a place where notices are found."""

    name: str
    """What a log line calls it."""

    def look(self) -> Notice | None:
        """Return the notice, or None if there is none (any more). Raises `Unclear`. Takes a few seconds at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a server said."""

    status: int
    text: str


class File:
    """Be a notice by a file that appears."""

    def __init__(self, path: str) -> None:
        self.name = path

    def look(self) -> Notice | None:
        if not os.path.isfile(self.name):
            # Of a FIFO or a device nothing is read: that it is there is all it can say.
            return Notice() if os.path.exists(self.name) else None
        try:
            return notice_in(_head_of(self.name))
        except FileNotFoundError:  # gone since
            return None
        except OSError:  # it is there, and not for us to read
            return Notice()


class Url:
    """Be a notice by a URL: 200 and a text that is no "no". 204, 404 and 410 say that there is none."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._ask = asking(proxies=True)

    def look(self) -> Notice | None:
        answer = self._ask("GET", self.name, {})
        if answer.status in (204, 404, 410):
            return None
        if answer.status != 200:
            raise Unclear(f"status {answer.status}")
        return None if answer.text.strip().lower() in _NO else notice_in(answer.text)


class Ec2:
    """Be the two-minute notice of a spot instance of Amazon's."""

    name = "ec2"

    def __init__(self, base: str | None = None) -> None:
        self._base = base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._token = ""
        self._ask = asking()

    def look(self) -> Notice | None:
        answer = self._instance_action()
        if answer.status == 401:  # the token has run out
            self._token = ""
            answer = self._instance_action()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unclear(f"status {answer.status}")
        told = notice_in(answer.text)
        return told if told.deadline_wall_ns is not None else Notice(within_s=EC2_S)

    def _instance_action(self) -> Answer:
        url = f"{self._base.rstrip('/')}/latest/meta-data/spot/instance-action"
        return self._ask("GET", url, {"X-aws-ec2-metadata-token": self._token or self._new_token()})

    def _new_token(self) -> str:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        answer = self._ask("PUT", f"{self._base.rstrip('/')}/latest/api/token", lifetime)
        if answer.status != 200:
            raise Unclear(f"no session token: status {answer.status}")
        self._token = answer.text.strip()
        return self._token


class Gcp:
    """Be the 30-second notice of a spot machine of Google's."""

    name = "gcp"

    def __init__(self, base: str | None = None) -> None:
        self._base = base or f"http://{os.environ.get('GCE_METADATA_HOST') or 'metadata.google.internal'}"
        self._ask = asking()

    def look(self) -> Notice | None:
        url = f"{self._base.rstrip('/')}/computeMetadata/v1/instance/preempted"
        answer = self._ask("GET", url, {"Metadata-Flavor": "Google"})
        word = answer.text.strip()
        if answer.status != 200 or word not in ("TRUE", "FALSE"):
            raise Unclear(f"status {answer.status}, {word[:40]!r} and not TRUE or FALSE")
        return Notice(within_s=GCP_S) if word == "TRUE" else None


class Azure:
    """Be the scheduled events of a machine of Microsoft's: all that end it, and not what only freezes it for seconds."""

    name = "azure"

    def __init__(self, base: str | None = None) -> None:
        self._base = (base or "http://169.254.169.254").rstrip("/")
        self._machine: str | None = None
        self._ask = asking()

    def look(self) -> Notice | None:
        document = self._document()
        events = [event for event in document if event.get("EventType") != "Freeze" and event.get("EventStatus") != "Completed"]
        if not events:
            return None
        ours = [event for event in events if self._concerns(event)]
        told = [notice for event in ours if (notice := _told_in(event)) is not None]
        if not ours:
            return None
        if len(told) < len(ours):  # one of them has begun
            return Notice(within_s=AZURE_S)
        return min(told, key=lambda notice: notice.deadline_wall_ns or 0)

    def _document(self) -> list[Mapping[str, Any]]:
        answer = self._get("scheduledevents?api-version=2020-07-01")
        try:
            found = json.loads(answer)["Events"]
            return [event for event in found if isinstance(event, dict)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unclear(f"its answer is no list of events: {answer[:80]!r}") from error

    def _concerns(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is one of this machine: those of all others of its set are listed, too."""
        resources = event.get("Resources")
        if not isinstance(resources, list):
            return True
        if self._machine is None:
            self._machine = self._get("instance/compute/name?api-version=2021-02-01&format=text").strip()
        return self._machine in resources

    def _get(self, path: str) -> str:
        answer = self._ask("GET", f"{self._base}/metadata/{path}", {"Metadata": "true"})
        if answer.status != 200:
            raise Unclear(f"status {answer.status}")
        return answer.text


_CLOUDS: Mapping[str, Callable[[str | None], Source]] = {"ec2": Ec2, "gcp": Gcp, "azure": Azure}


def source_of(notice: str, *, base: str | None = None) -> Source:
    """Return where to look for ``notice``: a path, a URL, or a cloud, whose metadata service is at ``base``.

    Raises `UsageError` (kind ``bad-notice``) for what is none of them.
    """
    if notice in _CLOUDS:
        return _CLOUDS[notice](base)
    if re.match(r"https?://[^/]", notice):
        return Url(notice)
    if "://" in notice or not notice.strip() or "\0" in notice:
        hint = 'a path like "/run/preempt", a URL like "http://localhost:9000/preempt", or "ec2", "gcp" or "azure"'
        raise UsageError("this is no place to look for a notice", kind="bad-notice", hint=hint, notice=notice)
    return File(os.path.abspath(notice))


def notice_in(text: str) -> Notice:
    """Return what a notice says of its deadline: Unix seconds, ``2026-11-30T12:04:11Z``, or how long it leaves, ``90s``.

    It may be a member of a JSON object. What cannot be understood is a notice without a deadline: it is a notice.
    """
    text = text.strip()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _read_time(text) or Notice()
    if isinstance(document, dict):
        return next((found for name in _NAMED if name in document and (found := _read_time(document[name]))), Notice())
    return _read_time(document) or Notice()


def _told_in(event: Mapping[str, Any]) -> Notice | None:
    told = _read_time(event.get("NotBefore"))
    return told if told is not None and told.deadline_wall_ns is not None else None


_A_DATE, _IN_MILLISECONDS, _FOREVER = 1e8, 1e11, 1e15
"""Less is a length of time in seconds; more a time since 1970, in seconds, or in milliseconds: else it were the year 5138."""


def _read_time(value: object) -> Notice | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    try:
        seconds = min(seconds_of(text), _FOREVER)
    except UsageError:
        return _read_date(text)
    if seconds < _A_DATE:
        return Notice(within_s=seconds)
    return Notice(deadline_wall_ns=round(seconds * (1e6 if seconds >= _IN_MILLISECONDS else 1e9)))


def _read_date(text: str) -> Notice | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            # Without a zone it is UTC: a machine's own zone is no platform's to know.
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return Notice(deadline_wall_ns=round(aware.timestamp() * 1e9))
        except (ValueError, TypeError, OverflowError):
            continue
    return None


Ask = Callable[[str, str, Mapping[str, str]], Answer]


def asking(*, proxies: bool = False) -> Ask:
    """Return what asks a server, by method, URL and headers. A metadata service is on this machine: no proxy reaches it."""
    opener = urllib.request.build_opener() if proxies else urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(method: str, url: str, headers: Mapping[str, str]) -> Answer:
        request = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310 - http(s) only, see source_of
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                return Answer(response.status, _read(response).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, "")
        except (OSError, HTTPException, ValueError) as error:
            raise Unclear(str(error) or type(error).__name__) from error

    return ask


def _read(response: HTTPResponse) -> bytes:
    clock, data = SystemClock(), b""
    until_ns = clock.monotonic_ns() + round(ANSWER_S * 1e9)
    # In parts: a server that sends a byte now and then is never late with one.
    while len(data) < _MOST_BYTES and (part := response.read1(_MOST_BYTES)):
        data += part
        if clock.monotonic_ns() >= until_ns:
            raise Unclear("its answer takes too long")
    return data[:_MOST_BYTES]


def _head_of(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
