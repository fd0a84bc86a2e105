"""Be a process of the story: a service, a trainer that commits, or a sampler that fetches and looks at every byte.

What each of them was told it writes down, a line at a time, once it was told. A kill may cost the last line, and never bends one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 6000
DURABLE_EVERY = 2
HELD_EVERY = 5
PATIENCE_S = 100.0


def warm_up(scratch: str) -> None:
    """Import what all of them need, and nothing that has threads: children are forked from here."""
    import milepost.service.client.client
    import milepost.service.server.serving

    assert milepost.service.client.client
    assert milepost.service.server.serving


def main(order: dict[str, Any]) -> None:
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    {"server": serve, "trainer": train, "sampler": sample}[order["role"]](order)


def note(place: str, name: str, **facts: object) -> None:
    """Write down a line that a kill either takes or leaves."""
    descriptor = os.open(f"{place}/{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, (json.dumps(facts) + "\n").encode())
    os.close(descriptor)


def notes(place: Path, name: str) -> list[dict[str, Any]]:
    path = place / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def serve(order: dict[str, Any]) -> None:
    from milepost.service.server.serving import serve as serve_root
    from milepost.service.settings import ServiceSettings
    from tests.service.durability.points import Strike, arm_server

    place = order["place"]
    arm_server(Strike(*order["strike"]) if order["strike"] else None, lambda: len(notes(Path(place), "acks")))
    settings = ServiceSettings.of(order["settings"])
    serve_root(f"{place}/run", settings, memory_base=f"{place}/shm")


def weights_of(step: int, branch: int) -> dict[str, Any]:
    """Return the weights of a step as this branch of training comes to them: no two are alike."""
    dice = np.random.default_rng((step, branch))
    return {"step": np.array([step, branch], np.int64), "w": dice.integers(0, 256, SIZE, np.uint8)}


def moments_of(step: int, branch: int) -> dict[str, Any]:
    return {"m": weights_of(step + 1_000_000, branch)["w"][:777], "step": step}


def train(order: dict[str, Any]) -> None:
    """Commit one version after the other, some durably, until told to stop; from the last one that was durable, if any was."""
    from milepost.errors import ServiceError
    from milepost.service import connect
    from tests.service.durability.points import Strike, arm_client

    place, branch = order["place"], f"{order['attempt']}"
    arm_client(Strike(*order["strike"]) if order["strike"] else None)
    while not os.path.exists(f"{place}/stop-training"):
        step = checkpoint(place)
        with connect(
            f"{place}/run",
            component="trainer",
            role="trainer",
            step=step or None,
            epoch=order["attempt"],
            transport=order["transport"],
            timeout=PATIENCE_S,
            commit_timeout=PATIENCE_S,
            fetch_timeout=PATIENCE_S,
        ) as service:
            try:
                service.resume()  # whoever was here before may have died while it held
                while not os.path.exists(f"{place}/stop-training"):
                    step += 1
                    commit(service, place, step, branch)
            except ServiceError as error:
                # The host that had the newest versions in memory is gone: back to what was durable, as the hint says.
                note(place, "refused", step=step, branch=branch, kind=error.kind, text=str(error))
                if error.kind != "lost-branch":
                    raise
                branch += "0"


def commit(service: Any, place: str, step: int, branch: str) -> None:
    durable = step % DURABLE_EVERY == 0
    key = f"{branch}-{step}"
    if step % HELD_EVERY == 0:
        service.hold()
    done = service.commit(
        step, weights_of(step, int(branch)), parts={"optimizer": moments_of(step, int(branch))}, durable=durable, key=key
    )
    facts = {"step": step, "key": done.key, "durable": durable, "at": [done.at.term, done.at.number]}
    note(place, "acks", **facts, digests={shard.slot: shard.digest for shard in done.shards})
    if durable:
        temporary = f"{place}/checkpoint.tmp"
        Path(temporary).write_text(str(step))
        os.replace(temporary, f"{place}/checkpoint")
    if step % HELD_EVERY == 0:
        service.resume()


def checkpoint(place: str) -> int:
    """Return the step of the trainer's own newest checkpoint: one that it was told is durable."""
    path = Path(place) / "checkpoint"
    return int(path.read_text()) if path.exists() else 0


def sample(order: dict[str, Any]) -> None:
    """Fetch whatever is newest, and look at all of it."""
    from milepost.errors import ServiceError
    from milepost.service import connect

    place, name = order["place"], order["name"]
    with connect(
        f"{place}/run",
        component=name,
        role="sampler",
        transport=order["transport"],
        timeout=PATIENCE_S,
        fetch_timeout=PATIENCE_S,
    ) as service:
        while not os.path.exists(f"{place}/stop-sampling"):
            try:
                weights = service.fetch(0.2, parts=("weights", "optimizer"))
            except ServiceError as error:
                if error.kind != "held":
                    raise
                continue
            if weights is not None:
                look_at(weights, place, name)
                weights.release()


def look_at(weights: Any, place: str, name: str) -> None:
    """Write down which version this is, and what is wrong with its bytes."""
    step, branch = (int(number) for number in weights["step"])
    moments = weights.part("optimizer")
    wrong = [
        what
        for what, is_right in (
            ("w", bool((weights["w"] == weights_of(step, branch)["w"]).all())),
            ("m", bool((moments["m"] == moments_of(step, branch)["m"]).all())),
            ("step", moments["step"] == step == weights.step),
        )
        if not is_right
    ]
    note(place, "fetched", by=name, at=[weights.at.term, weights.at.number], step=step, branch=branch, wrong=wrong)
