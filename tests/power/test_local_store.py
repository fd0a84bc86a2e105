"""The shipped power-loss tests, on the local store. A10, A13"""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.clock import SystemClock
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix
from milepost.testing import PowerLossTests
from milepost.testing.power import BlindSpotError
from tests.engine.training import local
from tests.power.drops import SITES, Dropping


class TestLocalStore(PowerLossTests):
    limit = 60

    def make_store(self, place: Path, posix: Posix) -> Store:
        return local(place / "deep/er/root", posix)


class StoreWithAMistake(PowerLossTests):
    limit = 40

    def __init__(self, site: tuple[str, str]) -> None:
        self.site = site

    def make_store(self, place: Path, posix: Posix) -> Store:
        return local(place / "root", Dropping(*self.site, inner=posix))


class StoreBehindTheRecorder(PowerLossTests):
    def make_store(self, place: Path, posix: Posix) -> Store:
        return LocalStore(place / "root", SystemClock())


class StoreWithoutFiles(PowerLossTests):
    def make_store(self, place: Path, posix: Posix) -> Store:
        return MemoryStore()


TESTS = sorted(name for name in vars(PowerLossTests) if name.startswith("test_"))


@pytest.mark.parametrize("site", SITES, ids=" in ".join)
def test_the_shipped_tests_find_each_sync_that_a_store_leaves_out(site: tuple[str, str]) -> None:
    def fails(name: str) -> bool:
        try:
            getattr(StoreWithAMistake(site), name)()
        except AssertionError as error:
            return "power cut after record" in str(error)
        return False

    assert any(map(fails, TESTS))


def test_the_shipped_tests_pass_no_store_whose_calls_they_do_not_see() -> None:
    for name in TESTS:
        with pytest.raises(BlindSpotError):
            getattr(StoreBehindTheRecorder(), name)()
    with pytest.raises(AssertionError, match="nothing was recorded"):
        StoreWithoutFiles().test_a_created_name_is_whole_or_absent_and_stays_once_it_was_told()
