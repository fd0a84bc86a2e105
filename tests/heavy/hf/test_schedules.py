"""The schedules of transformers are compared by what they were given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from milepost.pytorch.recover.schedule import compare, fingerprint


def schedule(name: str, total: int, **more: Any) -> Any:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    return get_scheduler(name, optimizer, num_warmup_steps=5, num_training_steps=total, scheduler_specific_kwargs=more)


@pytest.mark.parametrize(
    ("name", "more"),
    [("linear", {}), ("cosine", {}), ("cosine_with_restarts", {}), ("polynomial", {}), ("cosine_with_min_lr", {"min_lr": 0.01})],
)
def test_another_total_of_steps_is_the_one_difference(name: str, more: dict[str, Any]) -> None:
    trained = schedule(name, 100, **more)
    for _ in range(7):
        trained.optimizer.step()
        trained.step()
    same = compare("lr", fingerprint(trained), fingerprint(schedule(name, 100, **more)))
    assert (same.differences, same.not_compared, same.doubtful) == ((), (), ())
    other = compare("lr", fingerprint(trained), fingerprint(schedule(name, 200, **more)))
    assert [str(one) for one in other.differences] == ["lr.lr_lambdas[0].num_training_steps: saved 100, here 200"]
