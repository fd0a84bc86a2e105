"""Training scripts of users: each is run by `milepost selftest` as its own program."""

from __future__ import annotations

from pathlib import Path

HOLD = """
import os, threading

with open("starts", "a") as starts:
    starts.write(".")
    start = starts.tell()

def hold(at):
    # Stand still where a start is to be killed, so that it is, however busy the machine.
    if "/killed/" in os.environ["MILEPOST_ROOT"] and {stops}.get(start) == at:
        threading.Event().wait()
"""
LOOP = """
import numpy as np
import milepost
from milepost import Keep, every

generator = np.random.default_rng(3)
np.random.seed(1)
weights, counters = np.zeros(4), {{"step": 0}}
state = {{"policy": {{"weights": weights}}, "counters": counters, "rng": {rng}}}
with milepost.CheckpointEngine({root}, state=state, when=every(steps={every}), keep=Keep(last={keep})) as engine:
    engine.resume({which})
    while counters["step"] < 40:
        weights += np.random.normal(size=4) + generator.normal(size=4)
        counters["step"] += 1
        if engine.save_if_due(counters["step"]):
            engine.wait()  # one save after the other, so that each run has all of them
        hold(counters["step"])
    engine.save(counters["step"])
    engine.wait()
    hold("end")
"""

SB3 = """
import gymnasium, torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
import milepost
from milepost import every

torch.set_num_threads(1)
settings = {"learning_starts": 20, "buffer_size": 100, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
model = DQN("MlpPolicy", gymnasium.make("CartPole-v1"), seed=1, device="cpu", **settings)
class Holds(BaseCallback):
    def _on_step(self):
        hold(self.num_timesteps)
        return True

checkpointing = milepost.adapters.sb3.Checkpointing("runs/model", when=every(steps=64), writer="inline")
model.learn(256, callback=[checkpointing, Holds()])
"""

SETTINGS = {
    "rng": "milepost.Rng(generator=generator)",
    "root": "'runs/mine'",
    "every": "10",
    "keep": "5",
    "which": "",
}
SCRIPTS = {
    "exact": LOOP.format(**SETTINGS),
    "forgets": LOOP.format(**SETTINGS | {"rng": "milepost.Rng()"}),
    # What is retired before anybody has looked is not seen: some training goes on between two of its saves.
    "forgets, and keeps little": LOOP.format(**SETTINGS | {"rng": "milepost.Rng()", "keep": "1"}).replace(
        "engine.wait()", "engine.wait(); threading.Event().wait(0.5)", 1
    ),
    "not seeded": LOOP.format(**SETTINGS).replace("np.random.seed(1)", ""),
    "seeds nothing it does not use": LOOP.format(**SETTINGS)
    .replace("np.random.normal", "generator.normal")
    .replace("np.random.seed(1)", ""),
    "saves once": LOOP.format(**SETTINGS | {"every": "1000"}),
    "saves nothing": "print('trained')\n",
    "another root each time": LOOP.format(**SETTINGS | {"root": "f'runs/{__import__(\"os\").getpid()}'"}),
    "begins anew": LOOP.format(**SETTINGS | {"which": "'never'"}),
    "crashes": "import sys\nprint('epoch 1')\nsys.exit('no GPU found\\nask the administrator')\n",
    "never ends": "import threading\nthreading.Event().wait()\n",
    "refuses a second start": "import os, sys\nif os.path.exists('lock'):\n    sys.exit('locked by another run')\n"
    "open('lock', 'w').close()\n" + LOOP.format(**SETTINGS),
    "clears the environment": "import os, subprocess, sys\n"
    "env = {name: value for name, value in os.environ.items() if name != 'MILEPOST_ROOT'}\n"
    f"sys.exit(subprocess.call([sys.executable, '-c', {f'hold = print{LOOP.format(**SETTINGS)}'!r}], env=env))\n",
    "in a session of its own": "import subprocess, sys\nif 'INNER' not in os.environ:\n"
    "    inner = subprocess.Popen([sys.executable, *sys.argv], start_new_session=True, env=os.environ | {'INNER': '1'})\n"
    "    sys.exit(inner.wait())\n" + LOOP.format(**SETTINGS),
    "two roots": LOOP.format(**SETTINGS) + LOOP.format(**SETTINGS | {"root": "'runs/critic'"}),
    "dqn": SB3,
}


def written(name: str, folder: Path, stops: dict[int, int | str]) -> Path:
    """Write a script, and return where it is. ``stops``: by start of the killed run, the step where it waits for its end."""
    path = folder / "train.py"
    path.write_text(HOLD.replace("{stops}", repr(stops)) + SCRIPTS[name])
    return path
