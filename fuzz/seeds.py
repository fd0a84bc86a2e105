"""Write the first inputs of each target from the small run: ``python -m fuzz.seeds``. A fuzzer starts from what is sound."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import numpy as np

import milepost
from fuzz.targets import FRAME, ODD, RECORDS, TARGETS, base
from milepost.encode.digest import unseal
from milepost.state.tree import LiveLeaf, flatten

CORPUS = Path(__file__).resolve().parent / "corpus"


def seeds() -> dict[str, dict[str, bytes]]:
    """Return inputs by target and name."""
    files = base()
    manifest = json.loads(unseal(files["generations/000003.json"], ""))
    found: dict[str, dict[str, bytes]] = {target: {} for target in TARGETS}
    for index, (kind, name) in enumerate(RECORDS):
        like = next((data for known, data in files.items() if known.split("/")[0] == name.split("/")[0]), b"{}")
        body = unseal(like, name) if like != b"{}" else like
        found["record"][f"seed-{kind.__name__.lower()}"] = bytes([index]) + body[:6000]
    for component in manifest["components"]:
        specs = [[leaf["kind"], leaf["dtype"], leaf["shape"], leaf["stop"] - leaf["start"]] for leaf in component["leaves"]]
        text = json.dumps([component["tree"], specs], separators=(",", ":")).encode()
        found["tree"][f"seed-{component['name']}"] = text + b"\0some bytes"
    found["tree"]["seed-logs"] = _logs()
    for index, leaf in enumerate(name for name in (*files, "blobs/000003-t2-01d0000000000019.safetensors.part")):
        found["names"][f"seed-{index}"] = leaf.encode()
    for index, text in enumerate(("float32", ">i4", "<U5", "datetime64[3ns]", 'struct[8,[["a","int32",[],0],["b","<U1",[],4]]]')):
        found["names"][f"seed-dtype-{index}"] = text.encode()
    found["holder"]["seed"] = (
        b'{"pid":1,"host":"h","boot_id":"b","start_time":5,"claimed_ns":7,"claimed_at":"","command":"train.py","incarnation":"i",'
        b'"beat":1,"ttl_ms":1000,"released":false}'
    )
    for place in range(0, 240, 8):
        found["root"][f"seed-{place}"] = bytes([5, place % 14, *place.to_bytes(2, "little"), place % len(ODD)])
    found["blob"]["seed"] = files["blobs/000003-t2-01d0000000000019.safetensors"]
    found["frame"]["seed-raw"] = b"\5\0" + FRAME
    found["frame"]["seed-repeated"] = bytes.fromhex("0010") + bytes.fromhex("28b52ffd6000" + "0f" + "03800000") + b"x"
    return found


def _logs() -> bytes:
    """Return a tree with a ring and a queue in it. The bytes at its end are the queue's index: it is as long as they are."""
    ring = milepost.Rows({"a": np.zeros((6, 2)), "b": np.zeros(6, np.int32)}, count=8)
    ring.log.piece_bytes = 60
    queue = milepost.Items(deque([{"n": 1, "a": np.zeros(3)}, (True, np.zeros(2, np.uint8))]), count=5)
    flat = flatten({"ring": ring, "queue": queue}, "x")
    specs = [[leaf.spec.kind, leaf.spec.dtype, leaf.spec.shape, leaf.size_bytes] for leaf in flat.leaves]
    index = next(leaf for leaf in flat.leaves if isinstance(leaf, LiveLeaf) and ".index[" in leaf.path)
    return json.dumps([flat.node, specs], separators=(",", ":")).encode() + b"\0" + bytes(index.value)


if __name__ == "__main__":
    for target, inputs in seeds().items():
        for name, data in inputs.items():
            path = CORPUS / target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
