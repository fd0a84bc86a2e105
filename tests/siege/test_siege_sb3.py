"""PPO and DQN scripts that are struck wherever they are end with the bits of those that were left alone. B11, B20

Takes about half a minute: Stable-Baselines3 is imported once, and twenty models are built.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.testing.power import scratch
from tests.siege.campaign import SB3, besiege

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_scripts_of_stable_baselines3_that_are_struck_twenty_times_end_with_the_same_bits() -> None:
    with scratch() as place:
        toll = besiege(Path(place), 20, 20261130, SB3, tell=print)
    print(toll)
    assert toll.lost == []
    assert toll.strikes >= 20
