"""Put arrays into Ray's object store and have another process get them. Run in the environment that ``make bench-peers`` makes.

It stands by itself: nothing of milepost or of the other benchmarks is installed there. Each line of input is a number of arrays
and of bytes; the answer is how long putting and getting them took, in seconds.
"""

import os
import sys
import time

import numpy as np
import ray


@ray.remote
class Reader:
    """Be the other process."""

    def fetch(self, refs: list) -> int:
        """Get what the references name. It lies in shared memory, and is not copied."""
        return len(ray.get(refs[0]))


def main() -> None:
    """Answer until the input ends."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=8 << 30)
    reader = Reader.remote()
    ray.get(reader.fetch.remote([ray.put({})]))
    print("ready", flush=True)
    arrays: dict[str, np.ndarray] = {}
    for line in sys.stdin:
        count, size = map(int, line.split())
        if len(arrays) != count or sum(array.nbytes for array in arrays.values()) != size:
            arrays = {f"layer{n}.weight": np.full(size // count // 4, n, np.float32) for n in range(count)}
        started = time.perf_counter()
        ref = ray.put(arrays)
        put = time.perf_counter()
        if ray.get(reader.fetch.remote([ref])) != count:
            raise SystemExit("other arrays came")
        print(put - started, time.perf_counter() - put, flush=True)
        del ref
    sys.stdout.flush()
    os._exit(0)  # what Ray has started ends with its driver; a shutdown in good order takes seconds


if __name__ == "__main__":
    main()
