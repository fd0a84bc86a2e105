"""What holds the time of day is named, and nothing else is: neither another's ``t`` nor what stands beside it. B20"""

from __future__ import annotations

import pytest

from milepost.state.clocked import is_clocked


@pytest.mark.parametrize(
    "path",
    [
        "counters/elapsed_ns",
        "counters/model/ep_info_buffer/items[3]/t",
        "counters/model/ep_info_buffer/items/3/t",
        "envs/state/t_start",
        "envs/inner[0]/inner[0]/state/t_start",
        "envs/inner[0]/state/episode_times[12]",
        "envs/inner[0]/inner[1]/state/time_queue/items[0]",
        "envs/inner[0]/state/results_writer/state[0]",
        "envs/state/workers[1]/env/inner[0]/state/episode_times[2]",
        "envs/state/buf_infos[0]/episode/t",
        "evaluation/callback:CallbackList/1:EvalCallback/env/state/buf_infos[0]/episode/t",
        "replay/infos[7]/0/episode/t",
        "extra/steps[3]/info/episode/t",
        "extra/steps[3]/infos[0]/episode/t",
        "extra/logger/outputs[0]/text[0]",
        "extra/logger/outputs/1/attributes/keys/3",
        "extra/logger/directory",
        "metrics/time/fps",
    ],
)
def test_what_holds_the_time_of_day_is_named(path: str) -> None:
    assert is_clocked(path)


@pytest.mark.parametrize(
    "path",
    [
        "counters/t",
        "extra/t",
        "policy/t_start",
        "extra/episode/t",
        "counters/elapsed_ns_of_mine",
        "counters/model/ep_info_buffer/items[3]/r",
        "envs/state/buf_infos[0]/episode/r",
        "envs/inner[0]/state/episode_returns[12]",
        "envs/inner[0]/state/return_queue/items[0]",
        "extra/logger/pending/name_to_value/items[0]",
        "metrics/eval/mean_reward",
        "rng/process/torch",
    ],
)
def test_nothing_else_is(path: str) -> None:
    assert not is_clocked(path)
