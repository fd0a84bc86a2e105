"""Say what befalls a service: every point in order, and who goes with it; or any of them by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.service.durability.campaign import Setting, Turn
from tests.service.durability.points import CLIENT, ROLLBACK, SERVER, WHEN, Strike

_FEW = {"memory_keep_versions": 2, "disk_keep_versions": 3, "heartbeat_s": 1.0, "lease_s": 3.0}
MEMORY = Setting("memory", _FEW)
"""On the service's host: parts are written where they stay, and mapped."""
CONNECTED = Setting("connections", _FEW, transport="bulk", reads_by="grpc")
TO_DISK = Setting("no memory", {**_FEW, "memory_bytes": 0}, transport="grpc", reads_by="bulk")
"""All is brought to disk, and durable when it is visible."""
SETTINGS = (MEMORY, CONNECTED, TO_DISK)

_OVER_CONNECTIONS = ("blob:memory", "write:memory")
_POINTS = {
    MEMORY.name: tuple(point for point in SERVER if point not in _OVER_CONNECTIONS),
    CONNECTED.name: (*_OVER_CONNECTIONS, "finish:memory", "index:memory", "append:Committed", "spill", "reply:Done"),
    TO_DISK.name: ("blob:disk", "write:disk", "finish:disk", "index:disk", "erase:disk", "append:Committed", "append:Dropped"),
}
_ON_THE_WAY_TO_DISK = ("spill", "blob:disk", "write:disk", "finish:disk", "index:disk", "append:Stored")
_PROMISES = ("append:Committed", "append:Stored", "index:memory", "index:disk", "spill", "reply:Done")
_NEEDS_HELLO = ("append:Joined", "reply:Welcome")
_ONCE = (*_NEEDS_HELLO, ROLLBACK, "append:Began", "snapshot", "endpoint", "call:Hello")


def every_point(setting: Setting, *, twice: bool) -> Iterator[Turn]:
    """Yield each point of a setting; now and then the trainer goes, too, or the host with all memory.

    Each is struck before and after if ``twice``; else only those by which something becomes a promise, and of the others one.
    """
    number = 0
    for at, point in enumerate(_POINTS[setting.name]):
        for when in WHEN if twice or point in _PROMISES else (WHEN[at % 2],):
            number += 1
            on_the_way = when == "before" and point in _ON_THE_WAY_TO_DISK
            yield Turn(
                Strike(point, when, lingers=on_the_way),
                renews_trainer=point in _NEEDS_HELLO,
                takes_trainer=number % 5 == 0 or (setting is MEMORY and (on_the_way or number % 7 == 0)),
                takes_host=on_the_way or number % 7 == 0,
            )
    if setting is MEMORY:
        for when in WHEN if twice else WHEN[:1]:
            yield Turn(Strike(ROLLBACK, when), rolls_back=True)
        for at, point in enumerate(CLIENT):
            yield Turn(None, trainer=Strike(point, WHEN[at % 2], 2), leaves_service=at % 2 == 0, takes_host=at == 3)


def by_chance(dice: random.Random, setting: Setting, count: int) -> Iterator[Turn]:
    """Yield so many turns, of which each is as likely as any other."""
    for _ in range(count):
        if dice.random() < 0.2:
            point = _client_point(dice, setting)
            strike = Strike(point, dice.choice(WHEN), 1 if point in _ONCE else dice.randint(1, 12))
            yield Turn(None, trainer=strike, leaves_service=dice.random() < 0.6, takes_host=dice.random() < 0.2)
            continue
        point = dice.choice((*_POINTS[setting.name], ROLLBACK))
        yield Turn(
            Strike(
                point,
                dice.choice(WHEN),
                1 if point in _ONCE else dice.randint(1, 6),
                lingers=point in _ON_THE_WAY_TO_DISK and dice.random() < 0.5,
            ),
            rolls_back=point == ROLLBACK or dice.random() < 0.1,
            renews_trainer=point in _NEEDS_HELLO or dice.random() < 0.1,
            takes_trainer=dice.random() < 0.2,
            takes_host=dice.random() < 0.15,
        )


def _client_point(dice: random.Random, setting: Setting) -> str:
    points: Sequence[str] = CLIENT if setting is MEMORY else [point for point in CLIENT if point.startswith("call:")]
    return dice.choice(points)
