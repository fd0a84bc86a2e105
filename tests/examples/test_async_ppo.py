"""What a sampler sends a trainer, what becomes of it there, and that the page shows the pipeline as it is."""

from __future__ import annotations

import importlib
import re
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "async_ppo"
PAGE = EXAMPLE.parents[1] / "docs" / "async-ppo.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.import_module


def rollout(rollouts: ModuleType, number: int = 7, step: int = 3, length: int = 5, **instead: Any) -> Any:
    rng = np.random.default_rng(number)
    given = {
        "observations": rng.normal(size=(length, 2, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, size=(length, 2)),
        "logp": np.full((length, 2), np.log(0.5), np.float32),
        "rewards": np.ones((length, 2), np.float32),
        "following": rng.normal(size=(length, 2, 4)).astype(np.float32),
        "terminated": np.zeros((length, 2), bool),
        "ended": np.zeros((length, 2), bool),
        "returns": np.array([21.0], np.float32),
    }
    return rollouts.Rollout("sampler-0", rollouts.Stamp(number, step), **{**given, **instead})


@pytest.mark.parametrize(
    ("number", "step", "verdict"),
    [
        (50, 20, "use"),  # made with the version that training went on from
        (54, 24, "use"),
        (49, 20, "use"),  # before the fall, and of a step that the checkpoint has
        (49, 21, "orphaned"),  # trained on, and lost
        (49, 24, "orphaned"),
        (60, 25, "orphaned"),  # of a step that is still to come: of another run
        (30, 19, "stale"),
    ],
)
def test_what_is_too_old_or_of_a_lost_branch_is_not_trained_on(example: Any, number: int, step: int, verdict: str) -> None:
    # C7: the trainer is at step 24, and went on from step 20 as version 50.
    rollouts = example("rollouts")
    assert rollouts.judge(rollouts.Stamp(number, step), 24, rollouts.Stamp(50, 20), max_gap=4) == verdict


def test_a_rollout_arrives_as_it_was_sent_and_oldest_first(example: Any, tmp_path: Path) -> None:
    channel, rollouts = example("channel"), example("rollouts")
    outbox, inbox = channel.Outbox(str(tmp_path), "sampler-0"), channel.Inbox(str(tmp_path))
    assert inbox.take() is None
    sent = [rollout(rollouts, number) for number in (1, 2)]
    for each in sent:
        outbox.put(each)
    for each in sent:
        got = inbox.take()
        assert (got.sampler, got.stamp) == (each.sampler, each.stamp)
        for name in ("observations", "actions", "logp", "rewards", "following", "terminated", "ended", "returns"):
            np.testing.assert_array_equal(getattr(got, name), getattr(each, name), strict=True)
    assert inbox.take() is None


def test_a_sampler_that_is_ahead_waits_until_the_trainer_has_taken_one(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, rollouts = example("channel"), example("rollouts")
    outbox, inbox, is_sent = channel.Outbox(str(tmp_path), "sampler-0", most=1), channel.Inbox(str(tmp_path)), threading.Event()
    is_waiting, pause_s = threading.Event(), threading.Event().wait
    monkeypatch.setattr(channel.time, "sleep", lambda time_s: (is_waiting.set(), pause_s(time_s)))
    outbox.put(rollout(rollouts, 1))

    def send() -> None:
        outbox.put(rollout(rollouts, 2))
        is_sent.set()

    sender = threading.Thread(target=send, name="test-sender")
    sender.start()
    assert is_waiting.wait(60)
    assert not is_sent.is_set()
    assert inbox.take().stamp.number == 1
    assert is_sent.wait(60)
    sender.join()
    assert inbox.take().stamp.number == 2


def test_an_array_of_objects_is_not_unpickled(example: Any, tmp_path: Path) -> None:
    rollouts = example("rollouts")
    evil = rollout(rollouts, returns=np.array([print], object)).encode()
    with pytest.raises(ValueError, match="allow_pickle"):
        rollouts.Rollout.decode(evil)


def test_advantages_end_with_the_episode_and_weights_say_who_acted(example: Any) -> None:
    learning, rollouts = example("learning"), example("rollouts")
    torch.manual_seed(1)
    learner = learning.Learner(4, 2, 1e-3)
    for layer in (learner.critic[-1], learner.actor[-1]):
        torch.nn.init.zeros_(layer.weight)  # it expects nothing, and is undecided
    cut = np.array([[False, False], [True, False], [False, False]])
    made = rollout(rollouts, length=3, ended=cut, terminated=cut)
    _, _, advantages, returns, nearby, weight = learner._judge(made)
    keep = learning.DISCOUNT * learning.TRACE
    expected = torch.tensor([[1 + keep, 1 + keep + keep**2], [1, 1 + keep], [1, 1]]).flatten()
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected)
    torch.testing.assert_close(nearby.exp(), torch.full((6,), 0.5))
    torch.testing.assert_close(weight, torch.ones(6))
    # Whoever acted found it eight times less likely, or twice as likely, as the policy does by now.
    for logp, bounded in ((1 / 16, learning.MOST_WEIGHT), (1.0, 0.5)):
        other = rollout(rollouts, length=3, logp=np.full((3, 2), np.log(logp), np.float32))
        torch.testing.assert_close(learner._judge(other)[-1], torch.full((6,), float(bounded)))


def test_an_update_makes_likelier_what_was_better_also_if_another_has_done_it(example: Any) -> None:
    learning, rollouts = example("learning"), example("rollouts")
    torch.manual_seed(1)
    learner = learning.Learner(4, 2, 1e-2)
    actions = np.tile([0, 1], (64, 1))
    better = rollout(
        rollouts,
        length=64,
        actions=actions,
        rewards=actions.astype(np.float32),
        logp=np.full((64, 2), np.log(0.8), np.float32),
        terminated=np.ones((64, 2), bool),
        ended=np.ones((64, 2), bool),
    )
    before = learner.actor(torch.zeros(1, 4)).softmax(-1)[0, 1].item()
    for _ in range(3):
        learner.update([better], left=1.0)
    assert learner.actor(torch.zeros(1, 4)).softmax(-1)[0, 1].item() > before + 0.1
    learner.update([better], left=0.5)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.5e-2)


def test_a_sampler_sends_the_last_observation_of_an_episode_and_begins_the_next(example: Any) -> None:
    import gymnasium
    from gymnasium.vector import AutoresetMode

    sampler, learning, rollouts = example("sampler"), example("learning"), example("rollouts")
    again = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=again)
    torch.manual_seed(1)
    made = sampler.Sampler("sampler-0", envs, learning.network(4, 2, 0.01), seed=1).sample(100, rollouts.Stamp(1, 0))
    ends = np.argwhere(made.ended[:-1])
    assert len(ends) == len(made.returns) - made.ended[-1].sum() > 0
    for step, env in ends:
        # CartPole ends where it has left the track or fallen, and begins near the middle.
        assert abs(made.following[step, env, 0]) > 2.4 or abs(made.following[step, env, 2]) > 0.2
        assert np.abs(made.observations[step + 1, env]).max() < 0.06
    going = ~made.ended[:-1]
    np.testing.assert_array_equal(made.following[:-1][going], made.observations[1:][going])
    envs.close()


def test_the_page_shows_the_example_as_it_is() -> None:
    page = PAGE.read_text()
    assert f"\n```toml\n{(EXAMPLE / 'pipeline.toml').read_text()}```" in page
    scripts = [(EXAMPLE / name).read_text() for name in ("trainer.py", "sampler.py")]
    for shown, script in zip(re.findall(r"```python\n(.*?)```", page, re.DOTALL), scripts, strict=True):
        lines = [line.strip() for line in shown.splitlines()]
        assert "\n".join(lines) in "\n".join(line.strip() for line in script.splitlines())
