"""Say what a sampler sends and a trainer gets: what was seen and done, which weights did it, and how likely they were to."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

Verdict = Literal["use", "stale", "orphaned"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Name the version of the weights that something was made with."""

    number: int
    """Rises with each commit, for good."""
    step: int
    """Of the trainer. Comes again where training goes back to a checkpoint."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Hold ``T`` steps of ``N`` environments. The weights are fetched before the first: one version has made all of them."""

    sampler: str
    stamp: Stamp
    observations: np.ndarray
    """``(T, N, size)``, float32."""
    actions: np.ndarray
    """``(T, N)``, int64."""
    logp: np.ndarray
    """``(T, N)``, float32: of these actions, for the policy that chose them. Without it nobody could train on them later."""
    rewards: np.ndarray
    following: np.ndarray
    """``(T, N, size)``, float32: what came of it; where an episode ended, its last observation."""
    terminated: np.ndarray
    """``(T, N)``, bool: there is nothing more to be had after this."""
    ended: np.ndarray
    """``(T, N)``, bool: another episode begins, also where the last one was cut off."""
    returns: np.ndarray
    """``(K,)``: what the episodes that ended have brought."""

    def encode(self) -> bytes:
        """Return it as an ``.npz``. Nothing in it can run code when it is read."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        file = io.BytesIO()
        np.savez(file, sampler=np.array(self.sampler), stamp=np.array([*asdict(self.stamp).values()]), **arrays)
        return file.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Rollout:
        """Return what `encode` was called on."""
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in _ARRAYS}
            return cls(str(found["sampler"]), Stamp(*map(int, found["stamp"])), **arrays)


_ARRAYS = ("observations", "actions", "logp", "rewards", "following", "terminated", "ended", "returns")


def judge(made_by: Stamp, step: int, resumed: Stamp, max_gap: int) -> Verdict:
    """Say whether a trainer that is at ``step``, and began with the version ``resumed``, trains on what another has made.

    A version from before it began, and of a later step than that, was lost when the trainer fell: what it has made was sampled by
    a policy that this training has never had. So it is with one of a step that is still to come.
    """
    if made_by.step > step or (made_by.number < resumed.number and made_by.step > resumed.step):
        return "orphaned"
    return "stale" if step - made_by.step > max_gap else "use"
