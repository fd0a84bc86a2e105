"""Hear of news as it comes, through restarts of the service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from milepost.records import Version
from milepost.service.client.calls import Calls
from milepost.service.client.line import Broken, TimedOut, answers
from milepost.service.client.until import Until
from milepost.service.core.records import Commit
from milepost.service.proto import service_pb2 as pb
from milepost.service.wire import unpack_commit, unpack_weights


@dataclass(frozen=True, slots=True)
class News:
    """Say what the pointers are now. Who reads slowly gets the newest, and not all that was between."""

    at: Commit | None
    """The live version; None: there is none."""
    version: Version | None
    durable: Commit | None
    term: int
    reason: str
    """``committed``, ``durable``, ``rolled back``, ``held``, ``resumed``, ``began``."""


_QUIET_S = 60.0
"""For how long one call listens. A machine that has lost its power says nothing, for ever: it is asked anew."""


class _QuietError(Exception):
    """Say that there was no news for a while."""


class Watch(Iterator[News]):
    """Yield news, the first at once: what is now. `close` ends it, also from another thread.

    Raises `ServiceError` (kind ``unreachable``) once the service was away for longer than ``timeout_s``.
    """

    def __init__(self, calls: Calls, timeout_s: float, client: object = None) -> None:
        self._calls = calls
        self._client = client  # it ends when nobody refers to it, and this with it
        self._timeout_s = timeout_s
        self._call: Any = None
        self._replies: Iterator[Any] = iter(())
        self._is_answered = False
        self._last: News | None = None
        self._closed = False

    def __next__(self) -> News:
        while True:
            if self._is_over():
                raise StopIteration
            try:
                message = self._calls.keep_trying(self._next, Until(self._calls.clock, self._timeout_s))
            except _QuietError:
                continue
            except Exception:
                if self._is_over():
                    raise StopIteration from None
                raise
            news = _news(message)
            if news != self._last:  # what is now is said again after each interruption
                self._last = news
                return news

    def _is_over(self) -> bool:
        return self._closed or self._calls.closing.is_set()

    def _next(self) -> pb.News:
        self._calls.check()
        if self._is_over():
            raise _QuietError
        if self._call is None:
            self._call = self._calls.line.stream("Watch", pb.WatchRequest(caller=self._calls.caller), _QUIET_S)
            self._replies = answers(self._call)
            self._is_answered = False
            if self._is_over():  # just now, by who found no call to end
                self._call.cancel()
        try:
            message: pb.News = next(self._replies)
            self._is_answered = True
            return message
        except StopIteration as error:
            self._call = None
            raise Broken("the service has ended the watch") from error
        except TimedOut as error:
            self._call = None
            if self._is_answered:  # what is now comes at once: a service that has not said it is not there
                raise _QuietError from error
            raise
        except BaseException:
            self._call = None
            raise

    def close(self) -> None:
        """End it."""
        self._closed = True
        call = self._call
        if call is not None:
            call.cancel()  # whoever listens finds out then, and asks for no more

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _news(message: pb.News) -> News:
    live = unpack_weights(message.live).weights if message.HasField("live") else None
    durable = unpack_commit(message.durable) if message.HasField("durable") else None
    version = live.version if live is not None else None
    return News(live.at if live is not None else None, version, durable, message.term, message.reason)
