# sampler.py
"""Sample with the weights that the trainer sends. What a batch holds depends on them, on the step and on who samples."""

import json
import os
import socket
import time

import numpy as np

index = int(os.environ["MILEPOST_INDEX"])
while True:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect("trainer.sock")
            lines = connection.makefile("rw")
            lines.write(f"{index}\n")
            lines.flush()
            for line in lines:
                question = json.loads(line)
                time.sleep(0.002)  # your environment
                noise = np.random.default_rng([question["step"], index]).normal(size=8)
                lines.write(json.dumps((noise - question["weights"]).tolist()) + "\n")
                lines.flush()
        except OSError:
            time.sleep(0.05)  # the trainer is on its way back
