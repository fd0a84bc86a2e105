"""Who is told what happens beside what is written down: who leaves, falls silent, is there again; that the disk refuses."""

from __future__ import annotations

import queue
from typing import Any

from milepost.clock import FakeClock
from milepost.service.core.events import Tick
from milepost.service.core.records import Joined
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.happening import Failed, InTouch, Left, Mended, Silent
from milepost.service.settings import ServiceSettings
from tests.service.server.conftest import Hall

FAILS_AFTER_S = 60.0


class Heard:
    """Be told, in a thread of the service."""

    def __init__(self) -> None:
        self._happened: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, what: Any) -> None:
        self._happened.put(what)

    def next(self, *kinds: type) -> Any:
        """Return what happens next of these kinds."""
        while not isinstance(what := self._happened.get(timeout=FAILS_AFTER_S), kinds):
            pass
        return what


def test_who_leaves_who_falls_silent_and_who_is_there_again_is_told_once(hall: Hall) -> None:
    clock, heard = FakeClock(), Heard()
    kinds = (Joined, InTouch, Left, Silent)
    with hall.life(ServiceSettings(lease_s=60), clock=clock, heard=heard):
        sampler = hall.sampler()
        assert heard.next(*kinds).component == "sampler-0"
        assert heard.next(*kinds) == InTouch("sampler-0")
        goodbye = pb.GoodbyeRequest(caller=sampler.caller)
        clock.advance(seconds=61)
        assert heard.next(*kinds) == Silent("sampler-0", 60)
        sampler.say("Heartbeat", pb.HeartbeatRequest(caller=sampler.caller))
        assert heard.next(*kinds) == InTouch("sampler-0")
        sampler.say("Goodbye", goodbye)
        assert heard.next(*kinds) == Left("sampler-0")
        sampler.say("Goodbye", goodbye)  # said again, it has left already
        hall.trainer()
        assert heard.next(*kinds).component == "trainer"
    again = Heard()
    with hall.life(ServiceSettings(lease_s=60), clock=clock, heard=again):
        again.next(Tick)
        hall.trainer()  # the same process: nothing is written down
        assert again.next(*kinds) == InTouch("trainer")


def test_that_the_disk_refuses_is_told_once_and_so_is_that_it_does_no_more(hall: Hall) -> None:
    heard = Heard()
    with hall.life(heard=heard):
        versions = hall.root / "service" / "versions"
        versions.write_text("a file, where a directory is to be")
        trainer = hall.trainer()
        trainer.commit("one", 1, {"weights": b"1" * 100})
        failed = heard.next(Failed, Mended)
        assert (failed.what, failed.error.facts != {}) == ("spill", True)
        while trainer.status().counts["failed.spill"] < 3:
            pass
        versions.unlink()
        assert heard.next(Failed, Mended) == Mended("spill")
