"""A script that was changed is told what does not fit, side by side, before anything of it is changed. B14"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.wrappers import TimeFeatureWrapper
from stable_baselines3 import PPO, SAC
from torch.optim.swa_utils import AveragedModel

from milepost import CheckpointEngine, MismatchError, every
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import provenance
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_callbacks import Counting
from tests.adapters.sb3_contrib_scenarios import venv
from tests.adapters.sb3_runs import NET, env_of, off_policy


def on(cls: Any, policy: str = "MlpPolicy", env: Any = None, net: int = 16, **options: Any) -> Any:
    kwargs = {"net_arch": [net], **options.pop("policy_kwargs", {})}
    settings = {"n_steps": 8, "batch_size": 8, **options}
    return cls(policy, env or env_of("CartPole-v1"), seed=1, device="cpu", policy_kwargs=kwargs, **settings)


def recurrent(count: int = 1, size: int = 8) -> Any:
    kwargs = {"lstm_hidden_size": size}
    return on(RecurrentPPO, "MlpLstmPolicy", env_of("CartPole-v1", count), n_epochs=1, policy_kwargs=kwargs)


def masked(choices: int = 4) -> Any:
    return on(MaskablePPO, env=venv(lambda: InvalidActionEnvDiscrete(choices, 1)), n_epochs=1)


def pendulum(cls: Any, count: int = 1, **options: Any) -> Any:
    return off_policy(cls, 1, env_of("Pendulum-v1", count), **{"learning_starts": 6, "batch_size": 4, **options})


def quantiles(count: int) -> Any:
    return off_policy(QRDQN, 1, env_of("CartPole-v1"), learning_starts=6, policy_kwargs={**NET, "n_quantiles": count})


def search(policy: str = "LinearPolicy", env: str = "CartPole-v1") -> Any:
    return ARS(policy, env_of(env), n_delta=1, seed=1, device="cpu")


def timed(wrapped: bool) -> Any:
    return on(TRPO, env=venv(lambda: TimeFeatureWrapper(gym.make("CartPole-v1")) if wrapped else gym.make("CartPole-v1")))


def curious(size: int, averaged: bool = True) -> Any:
    """Return a model whose callback holds a network of its own."""
    model = on(PPO, n_epochs=1)
    holding = Counting()
    vars(holding).update(net=torch.nn.Linear(4, size), other=torch.nn.Linear(4, 2))
    if averaged:
        holding.other = AveragedModel(holding.other)  # type: ignore[attr-defined]
    learn = model.learn
    model.learn = lambda steps, callback: learn(steps, callback=[callback, holding])
    return model


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "PPO for TRPO": (lambda: on(PPO, n_epochs=1), lambda: on(TRPO), "algorithm"),
    "MaskablePPO for PPO": (masked, lambda: on(PPO, env=venv(lambda: InvalidActionEnvDiscrete(4, 1))), "algorithm"),
    "SAC for TQC": (lambda: pendulum(SAC), lambda: pendulum(TQC), "algorithm"),
    "ARS for PPO": (search, lambda: on(PPO, n_epochs=1), "algorithm"),
    "PPO for ARS": (lambda: on(PPO, n_epochs=1), search, "algorithm"),
    "an LSTM's size": (recurrent, lambda: recurrent(size=6), "lstm"),
    "an LSTM's environments": (recurrent, lambda: recurrent(count=2), "num_envs"),
    "the number of masked actions": (masked, lambda: masked(5), "action"),
    "a network's width": (lambda: on(TRPO), lambda: on(TRPO, net=12), "policy"),
    "the number of quantiles": (lambda: quantiles(10), lambda: quantiles(12), "quantile_net"),
    "the number of critics": (
        lambda: pendulum(TQC),
        lambda: pendulum(TQC, policy_kwargs={**NET, "n_critics": 3}),
        "critic",
    ),
    "a buffer's size": (lambda: pendulum(CrossQ), lambda: pendulum(CrossQ, buffer_size=60), "replay/"),
    "a buffer's environments": (lambda: pendulum(CrossQ), lambda: pendulum(CrossQ, count=2), "num_envs"),
    "a policy's kind": (search, lambda: search("MlpPolicy"), "policy"),
    "another env": (search, lambda: search(env="Acrobot-v1"), "CartPoleEnv"),
    "a network of a callback's": (lambda: curious(3), lambda: curious(2), "Counting.net"),
    "an object of a callback's": (lambda: curious(3), lambda: curious(3, averaged=False), "Counting.other"),
    "a wrapper taken off": (lambda: timed(True), lambda: timed(False), "TimeFeatureWrapper"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_changed_is_named_and_nothing_is_touched(case: str) -> None:
    before, after, named = CASES[case]
    store = MemoryStore()
    before().learn(24, callback=Checkpointing(store, when=every(steps=8), writer="inline"))
    model = after()
    held = [tensor.clone() for tensor in model.policy.state_dict().values()]
    with pytest.raises(MismatchError) as caught:
        model.learn(10_000, callback=Checkpointing(store, when=every(steps=8), writer="inline"))
    found = [difference for difference in caught.value.differences if named in difference.path or named in difference.saved]
    assert found, [str(difference) for difference in caught.value.differences]
    assert all(difference.saved != difference.live for difference in caught.value.differences)
    assert all(torch.equal(one, other) for one, other in zip(held, model.policy.state_dict().values(), strict=True))


def test_another_version_of_whatever_bits_depend_on_is_named_at_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    # Simulators too: another version of one steps otherwise, and its state may fit all the same.
    for _, module in provenance.PACKAGES:
        importlib.import_module(module)
    store, state = MemoryStore(), {"extra": {"a": 1}}
    with CheckpointEngine(store, state=state, writer="inline") as engine:
        engine.save(1)
    assert not {"", "unknown"} & set(provenance.versions(provenance.PACKAGES).values())
    monkeypatch.setattr(provenance, "_version", lambda package, module: f"another {module}")
    with CheckpointEngine(store, state=state, writer="inline") as engine:
        restored = engine.resume()
    assert restored is not None
    named = {warning.partition(":")[0] for warning in restored.warnings}
    assert named == {f"version/{package}" for package, _ in provenance.PACKAGES if package != "milepost"}
