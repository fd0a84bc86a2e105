"""Real torchrun. Each test takes seconds: the agent imports torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.told import PATIENCE_S, steps_of

pytest.importorskip("torch")

TRAIN = """
import logging, os, sys
from pathlib import Path

import numpy as np

from milepost import CheckpointEngine, Stop

logging.basicConfig(level=logging.INFO)
out, rank = Path(sys.argv[1]), os.environ["RANK"]
weights = np.zeros(4)
with CheckpointEngine(out / rank, state={"policy": {"weights": weights}}, stop=Stop(grace="5m")) as engine:
    engine.resume()
    os.mkfifo(out / f"gate{rank}")
    (out / f"error_file{rank}").write_text(os.environ["TORCHELASTIC_ERROR_FILE"])
    step = 0
    while True:
        step += 1
        weights[:] = step
        engine.save_if_due(step)
        if step == 5:
            open(out / f"gate{rank}", "w").close()  # waits until somebody looks
            if len(sys.argv) > 2:
                engine.stop_by(0, path="limit")
"""


def torchrun(out: Path, workers: int, *arguments: str) -> subprocess.Popen[str]:
    (out / "train.py").write_text(TRAIN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(workers), "--log-dir", str(out / "logs")]
    command += [str(out / "train.py"), str(out), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(agent: subprocess.Popen[str], gate: Path) -> None:
    while not gate.exists():
        assert agent.poll() is None
    with open(gate) as opened:
        opened.read()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_term_to_torchrun_has_every_worker_save_and_leave(tmp_path: Path, workers: int) -> None:
    agent = torchrun(tmp_path, workers)
    try:
        for rank in range(workers):
            wait_for(agent, tmp_path / f"gate{rank}")
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=PATIENCE_S)
    finally:
        agent.kill()
        agent.communicate()
    for rank in range(workers):
        (step,) = steps_of(tmp_path / str(rank))
        assert step >= 5
    assert said.count("SIGTERM: training stops at its next safe point, within 30 s") == workers
    assert "torchrun kills its workers 30 s after SIGTERM" in said
    # torchrun tells its own end, and not its workers': who wants to know looks at their records.
    assert agent.returncode == 1
    assert "forcefully exiting" not in said


def test_a_worker_that_leaves_by_itself_ends_with_75_and_writes_no_error_file(tmp_path: Path) -> None:
    agent = torchrun(tmp_path, 1, "leave")
    try:
        wait_for(agent, tmp_path / "gate0")
        _, said = agent.communicate(timeout=PATIENCE_S)
    finally:
        agent.kill()
        agent.communicate()
    assert re.search(r"exitcode\s+: 75", said)
    assert not Path((tmp_path / "error_file0").read_text()).exists()
    assert len(steps_of(tmp_path / "0")) == 1
