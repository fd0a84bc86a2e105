"""Models that Stable-Baselines3 has saved go on under `Checkpointing` with the same weights, moments, rows and counters."""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch.optim import Optimizer

import milepost
from milepost import CorruptError, MismatchError, UsageError
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.importing import SavedModels
from milepost.pytorch.importing.base import Imported, Options
from tests.adapters.sb3_runs import Reach

KIND = SavedModels()
NET = {"net_arch": [8]}
WHY = {"envs", "extra", "rng"}


def on_policy(cls: Any, **more: Any) -> Callable[[int], Any]:
    env = more.pop("env", lambda: gym.make("CartPole-v1"))
    policy = more.pop("policy", "MlpPolicy")
    return lambda seed: cls(policy, DummyVecEnv([env]), n_steps=32, policy_kwargs=dict(NET), seed=seed, device="cpu", **more)


def off_policy(cls: Any, **more: Any) -> Callable[[int], Any]:
    env = more.pop("env", lambda: gym.make("CartPole-v1" if cls in (DQN, QRDQN) else "Pendulum-v1"))
    policy = more.pop("policy", "MlpPolicy")
    settings = {"learning_starts": 20, "buffer_size": 64, "batch_size": 8, "policy_kwargs": dict(NET), "device": "cpu", **more}
    return lambda seed: cls(policy, DummyVecEnv([env]), seed=seed, **settings)


def normalized(seed: int) -> Any:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1") for _ in range(2)]))
    return PPO("MlpPolicy", env, n_steps=16, batch_size=16, policy_kwargs=dict(NET), seed=seed, device="cpu")


MODELS: dict[str, Callable[[int], Any]] = {
    "PPO": on_policy(PPO, batch_size=16, n_epochs=2),
    "A2C": on_policy(A2C),
    "TRPO": on_policy(TRPO, batch_size=16),
    "RecurrentPPO": on_policy(RecurrentPPO, policy="MlpLstmPolicy", batch_size=16, n_epochs=1),
    "MaskablePPO": on_policy(MaskablePPO, env=lambda: InvalidActionEnvDiscrete(dim=8, n_invalid_actions=2), batch_size=16),
    "DQN": off_policy(DQN, train_freq=2, target_update_interval=10),
    "QRDQN": off_policy(QRDQN),
    "SAC": off_policy(SAC),
    "SAC, gSDE": off_policy(SAC, use_sde=True, ent_coef=0.1),
    "TQC": off_policy(TQC),
    "CrossQ": off_policy(CrossQ),
    "TD3": off_policy(TD3),
    "DDPG": off_policy(DDPG),
    "PPO, normalized": normalized,
    "HER": off_policy(SAC, policy="MultiInputPolicy", env=Reach, replay_buffer_class=HerReplayBuffer),
}


class Look(BaseCallback):
    """Take a copy of the model as it is where the first rollout starts, once ours has been there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def _on_rollout_start(self) -> None:
        if not self.seen:
            buffer = io.BytesIO()
            self.model.save(buffer)
            self.seen = {"zip": buffer, "step": self.model.num_timesteps, "updates": self.model._n_updates}
            if getattr(self.model, "replay_buffer", None) is not None:
                rows = ("add", "env", "device", "infos")
                held = {name: value for name, value in vars(self.model.replay_buffer).items() if name not in rows}
                self.seen["replay"] = copy.deepcopy(held)
            if (normalizer := self.model.get_vec_normalize_env()) is not None:
                self.seen["normalizer"] = (pickle.dumps(normalizer), normalizer.get_original_obs())

    def _on_step(self) -> bool:
        return True


def save_by_callback(name: str, folder: Path, *, at: int = 70, total: int = 100) -> Path:
    model = MODELS[name](0)
    every = at // model.n_envs
    model.learn(
        total, callback=CheckpointCallback(every, str(folder), save_replay_buffer=True, save_vecnormalize=True), log_interval=None
    )
    return folder / f"rl_model_{at}_steps.zip"


@pytest.fixture(scope="module")
def sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_by_callback("SAC", tmp_path_factory.mktemp("sac"))


def bring(path: Path, root: Path, **options: Any) -> Imported:
    assert KIND.recognise(path)
    return KIND.bring(path, str(root), Options(**options))


def resumed(name: str, root: Path, total: int = 100, seed: int = 1) -> tuple[Any, dict[str, Any]]:
    model, look = MODELS[name](seed), Look()
    model.learn(total, callback=[look, Checkpointing(root)], log_interval=None)
    return model, look.seen


def entries(file: Any) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".pth")]
        return {name: torch.load(io.BytesIO(archive.read(name)), weights_only=True) for name in names}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_saved_by_stable_baselines3_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    path = save_by_callback(name, tmp_path / "saved")
    came = bring(path, tmp_path / "run", trust_pickle=name == "HER")
    assert (came.step, came.generation) == (70, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # HER says that it ends the episode
        model, seen = resumed(name, tmp_path / "run")

    assert seen["step"] == 70
    with zipfile.ZipFile(path) as archive:
        assert seen["updates"] == json.loads(archive.read("data"))["_n_updates"]
    assert same(entries(path), entries(seen["zip"])), "weights and moments"
    if "replay" in seen:
        with (path.parent / "rl_model_replay_buffer_70_steps.pkl").open("rb") as file:
            saved = vars(pickle.load(file))
        # The episode under way has no next step.
        for ending in ("dones", "timeouts") if name == "HER" else ("timeouts",):
            saved[ending][(saved["pos"] - 1) % 64] = True
        ends = {"ep_length", "ep_start", "_current_ep_start", "infos"} if name == "HER" else set()
        for field in saved.keys() - {"observation_space", "action_space", "device", "env", "goal_selection_strategy"} - ends:
            np.testing.assert_equal(seen["replay"][field], saved[field], field)
        assert seen["replay"]["pos"] == 5  # CheckpointCallback saves before the row of its step is stored
    if "normalizer" in seen:
        with (path.parent / "rl_model_vecnormalize_70_steps.pkl").open("rb") as file:
            statistics = pickle.load(file).obs_rms
        statistics.update(seen["normalizer"][1])  # the new episode's first observation has been seen, as it would have been
        assert same_statistics(pickle.loads(seen["normalizer"][0]).obs_rms, statistics)
    assert model.num_timesteps >= 100

    again, seen = resumed(name, tmp_path / "run", total=100)
    assert seen == {}, "the second run of the same script has nothing to train"
    assert again.num_timesteps == model.num_timesteps
    assert same(again.get_parameters(), model.get_parameters())


def same_statistics(one: Any, other: Any) -> bool:
    return bool((one.mean == other.mean).all() and (one.var == other.var).all() and one.count == other.count)


def test_what_a_saved_model_does_not_hold_is_said_by_the_import_and_by_the_resume(
    sac: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    came = bring(sac, tmp_path / "run")
    assert {text.partition(":")[0] for text in came.left_out} == WHY
    assert came.components == ("policy", "optimizer", "counters", "replay")
    with caplog.at_level("INFO", logger="milepost"):
        resumed("SAC", tmp_path / "run")
    told = next(record.getMessage() for record in caplog.records if "restored global_step=70" in record.getMessage())
    for component in WHY:
        assert f"{component}: not captured (a saved model holds no " in told
    assert "exact=no" in told


def test_a_setting_that_the_script_has_otherwise_is_told(sac: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bring(sac, tmp_path / "run")
    model = off_policy(SAC, gamma=0.5)(1)
    with caplog.at_level("WARNING", logger="milepost"):
        model.learn(75, callback=Checkpointing(tmp_path / "run"), log_interval=None)
    told = [record.getMessage() for record in caplog.records]
    assert "resume: code/settings/gamma: saved 0.99, here 0.5" in told
    assert not [text for text in told if "batch_size: saved" in text]


def test_the_same_total_trains_nothing_and_gives_the_imported_model(sac: Path, tmp_path: Path) -> None:
    bring(sac, tmp_path / "run")
    model, seen = resumed("SAC", tmp_path / "run", total=70)
    assert (seen, model.num_timesteps) == ({}, 70)
    assert same(model.policy.state_dict(), entries(sac)["policy.pth"])


def test_another_algorithm_is_refused_before_anything_is_changed(sac: Path, tmp_path: Path) -> None:
    bring(sac, tmp_path / "run")
    with pytest.raises(MismatchError, match=r"algorithm: saved stable_baselines3\.sac\.sac\.SAC, here stable_baselines3\.td3"):
        resumed("TD3", tmp_path / "run")


def test_a_class_of_ones_own_is_named(sac: Path, tmp_path: Path) -> None:
    mine = f"{__name__}.Mine"
    bring(sac, tmp_path / "run", components={mine: "algorithm"})
    assert milepost.load(tmp_path / "run", parts=["counters"])["counters"]["algorithm"] == mine  # type: ignore[index]
    ARS("LinearPolicy", "CartPole-v1", n_delta=1).save(tmp_path / "ars.zip")
    with pytest.raises(UsageError, match=r"(?s)algorithm that cannot be imported.*=algorithm"):
        bring(tmp_path / "ars.zip", tmp_path / "other")


def test_a_part_that_no_model_has_is_refused_and_not_passed_over(sac: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rows\.pkl") as caught:
        bring(sac, tmp_path / "run", components={"rows.pkl": "reply"}, dry_run=True)
    assert caught.value.kind == "unknown-component"
    assert "FILE=replay" in caught.value.hint


def test_files_of_other_names_belong_to_a_model_when_that_is_said(tmp_path: Path) -> None:
    model = MODELS["SAC"](0)
    model.learn(40, log_interval=None)
    model.save(tmp_path / "final.zip")
    model.save_replay_buffer(tmp_path / "rows.pkl")
    assert "replay: no replay buffer lies beside" in " ".join(bring(tmp_path / "final.zip", tmp_path / "bare").left_out)
    came = bring(tmp_path / "final.zip", tmp_path / "run", components={"rows.pkl": "replay"})
    assert {text.partition(":")[0] for text in came.left_out} == WHY
    assert resumed("SAC", tmp_path / "run", total=50)[1]["replay"]["pos"] == 40
    assert resumed("SAC", tmp_path / "bare", total=50)[1]["replay"]["pos"] == 0


def test_noise_that_depends_on_what_was_learned_is_drawn_again_from_that(tmp_path: Path) -> None:
    model = MODELS["SAC, gSDE"](0)
    model.learn(30, log_interval=None)
    with torch.no_grad():
        model.actor.log_std.fill_(-30)
    model.save(tmp_path / "still.zip")
    bring(tmp_path / "still.zip", tmp_path / "run")
    seen = []

    class Noise(BaseCallback):
        def _on_rollout_start(self) -> None:
            seen.append(self.model.policy.actor.action_dist.exploration_mat.abs().max().item())  # type: ignore[union-attr]

        def _on_step(self) -> bool:
            return True

    MODELS["SAC, gSDE"](1).learn(40, callback=[Noise(), Checkpointing(tmp_path / "run")], log_interval=None)
    assert seen[0] < 1e-9, "that of the fresh model is near 1"


def test_a_run_whose_observations_were_normalized_says_so_where_the_statistics_are_missing(tmp_path: Path) -> None:
    path = save_by_callback("PPO, normalized", tmp_path)
    (tmp_path / "rl_model_vecnormalize_70_steps.pkl").unlink()
    assert "normalizer: no statistics lie beside the model" in " ".join(bring(path, tmp_path / "run").left_out)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def rewritten(path: Path, to: Path, **changed: bytes | None) -> Path:
    """Copy a model with other entries; underscores of ``changed`` stand for dots."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        names = {name.replace(".", "_"): name for name in old.namelist()}
        for key, name in names.items():
            data = changed.pop(key, old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name, data in changed.items():
            assert data is not None
            new.writestr(name, data)
    return to


def test_pickles_within_a_model_are_never_run(sac: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(sac) as archive:
        data = json.loads(archive.read("data"))
    evil = base64.b64encode(pickle.dumps(Evil(tmp_path / "ran"))).decode()
    for name in ("policy_class", "ep_info_buffer", "lr_schedule", "_last_obs"):
        data[name] = {":type:": "evil", ":serialized:": evil}
    path = rewritten(sac, tmp_path / "evil.zip", data=json.dumps(data).encode())
    for trust in (False, True):
        came = bring(path, tmp_path / f"run{trust}", trust_pickle=trust)
        assert any("ep_info_buffer" in text and "posix.system" in text for text in came.left_out)
    weights = io.BytesIO()
    torch.save({"w": torch.ones(1), "evil": Evil(tmp_path / "ran")}, weights)
    path = rewritten(sac, tmp_path / "weights.zip", policy_pth=weights.getvalue())
    with pytest.raises(UsageError, match=r"calls=`posix\.system"):
        bring(path, tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def test_a_replay_buffer_that_is_more_than_data_waits_for_trust(sac: Path, tmp_path: Path) -> None:
    path = tmp_path / "m_70_steps.zip"
    path.write_bytes(sac.read_bytes())
    (tmp_path / "m_replay_buffer_70_steps.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    came = bring(path, tmp_path / "run")
    assert any(text.startswith("replay: ") and "--trust-pickle" in text and "posix.system" in text for text in came.left_out)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": b"{"}, "no JSON"),
        ({"data": b"[1]"}, "no attributes"),
        ({"data": b"[" * 100_000}, "no JSON"),
        ({"data": b'{"num_timesteps": -1, "gae_lambda": 1}'}, "a counter of the model is none"),
        ({"data": b'{"num_timesteps": "70", "gae_lambda": 1}'}, "a counter of the model is none"),
        ({"policy_pth": None}, "no policy"),
        ({"policy_pth": b"nothing"}, "nothing that torch has written"),
        ({"../../evil.pth": b"x"}, "a name that no model has"),
        ({"/etc/evil.pth": b"x"}, "a name that no model has"),
    ],
)
def test_a_model_that_is_bent_is_refused_and_nothing_is_written(
    changed: dict[str, bytes | None], said: str, sac: Path, tmp_path: Path
) -> None:
    with pytest.raises(CorruptError, match=said):
        KIND.bring(rewritten(sac, tmp_path / "bent.zip", **changed), str(tmp_path / "run"), Options())
    assert not (tmp_path / "run").exists()


def test_damage_a_cut_and_a_bomb_are_told(sac: Path, tmp_path: Path) -> None:
    whole, bent = sac.read_bytes(), tmp_path / "bent.zip"
    for at in range(40, len(whole) - 3000, len(whole) // 40):
        bent.write_bytes(whole[:at])
        assert KIND.recognise(bent)
        with pytest.raises(CorruptError):
            KIND.bring(bent, str(tmp_path / "run"), Options())
    with zipfile.ZipFile(sac) as archive:
        start = archive.getinfo("policy.pth").header_offset + 200
    bent.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    with pytest.raises(CorruptError, match="not what was written"):
        bring(bent, tmp_path / "run")
    with zipfile.ZipFile(bent, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("data", b" " * (64 << 20))
        packed.writestr("policy.pth", b"")
    with pytest.raises(CorruptError, match="compressed"):
        bring(bent, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "bend",
    [
        lambda fields: fields.update(pos=64),
        lambda fields: fields.update(pos=-1),
        lambda fields: fields.update(full="yes"),
        lambda fields: fields.update(buffer_size=10),
        lambda fields: fields.pop("observations"),
        lambda fields: fields.update(actions=3),
    ],
)
def test_a_replay_buffer_that_does_not_hold_together_is_refused(bend: Any, sac: Path, tmp_path: Path) -> None:
    path = tmp_path / "m_70_steps.zip"
    path.write_bytes(sac.read_bytes())
    with (sac.parent / "rl_model_replay_buffer_70_steps.pkl").open("rb") as file:
        buffer = pickle.load(file)
    bend(vars(buffer))
    (tmp_path / "m_replay_buffer_70_steps.pkl").write_bytes(pickle.dumps(buffer))
    with pytest.raises(CorruptError, match=r"cursor and arrays|does not hold together"):
        bring(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_torch_files_and_other_zips_are_not_taken_for_models(tmp_path: Path) -> None:
    torch.save({"data": 1}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("data", "{}")
    assert not any(KIND.recognise(path) for path in (tmp_path / "a.pt", tmp_path / "b.zip", tmp_path))


def test_moments_are_those_of_the_saved_optimizers(sac: Path, tmp_path: Path) -> None:
    bring(sac, tmp_path / "run")
    loaded: Any = milepost.load(tmp_path / "run", parts=["optimizer"])
    assert {f"{name}.pth" for name in loaded["optimizer"]} == {name for name in entries(sac) if "optimizer" in name}
    assert same(loaded["optimizer"]["actor.optimizer"], entries(sac)["actor.optimizer.pth"])
    assert isinstance(MODELS["SAC"](0).actor.optimizer, Optimizer)
