"""Who watches hears of what counts most, however slowly it reads. C1"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from milepost.records import Version
from milepost.service.core.records import Commit, Committed, Entry, Held, RolledBack, Stored, Weights
from milepost.service.server import watching
from milepost.service.server.watching import Watchers

AT = Commit(1, 1)
COMMITTED = Committed(Weights(AT, Version("run", 1, 1), (), None, "trainer", "1", "k"))


def told(*steps: tuple[Entry, ...] | None) -> list[str]:
    """Return what a watcher hears that reads once where a step is None."""

    async def main() -> list[str]:
        watchers, heard = Watchers(), []
        watch = watchers.watch()
        for step in steps:
            if step is None:
                heard.append(await anext(watch))
            else:
                watchers.tell(step)
        watchers.close()
        heard.extend([reason async for reason in watch])
        assert len(watchers) == 0
        return heard

    return asyncio.run(main())


def test_the_first_news_is_there_at_once() -> None:
    assert told(None) == ["began"]


def test_who_reads_slowly_hears_once_of_all_that_was_between_and_by_what_counts_most() -> None:
    assert told(None, (COMMITTED,), None, (COMMITTED,), (Stored(AT),), None) == ["began", "committed", "committed"]
    assert told(None, *[(COMMITTED,)] * 1000, (RolledBack(AT, "why"),), (COMMITTED, Stored(AT)), None) == ["began", "rolled back"]
    assert told(None, (Held("trainer"),), (COMMITTED,), None, (Stored(AT),), None) == ["began", "held", "durable"]


def test_all_end_when_the_service_does_and_who_comes_then_too() -> None:
    async def main() -> None:
        watchers = Watchers()
        waiting = [asyncio.create_task(_all(watchers.watch())) for _ in range(3)]
        await asyncio.sleep(0)
        watchers.close()
        assert await asyncio.gather(*waiting, _all(watchers.watch())) == [["began"], ["began"], ["began"], []]
        assert len(watchers) == 0

    asyncio.run(main())


async def _all(watch: AsyncIterator[str]) -> list[str]:
    return [reason async for reason in watch]


def test_more_than_there_may_be_are_refused(monkeypatch: object) -> None:
    async def main() -> None:
        watchers = Watchers()
        watches = [watchers.watch() for _ in range(watching.MAX_WATCHERS)]
        for each in watches:
            await anext(each)
        refused = watchers.full()
        assert refused is not None
        assert refused.kind == "too-many"
        await watches[0].aclose()  # type: ignore[attr-defined]
        assert watchers.full() is None
        watchers.close()
        for each in watches[1:]:
            assert await _all(each) == []

    asyncio.run(main())
