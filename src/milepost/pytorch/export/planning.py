"""Decide what the files of an export will hold and which rank writes which, from what all ranks know alike. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milepost.engine.arena import pages
from milepost.pytorch.export.forming import Forms
from milepost.pytorch.export.sharding import Spec, Split, shares, split


@dataclass(frozen=True, slots=True)
class Plan:
    """Say what an export's files will hold, and whose they are."""

    forms: Forms
    split: Split
    owners: Mapping[str, int]
    """By file, the rank that keeps and writes it."""

    def files_of(self, rank: int) -> dict[str, tuple[str, ...]]:
        """Return a rank's files, and which tensors each holds."""
        return {file: names for file, names in self.split.files.items() if self.owners[file] == rank}

    def specs(self, names: Sequence[str]) -> dict[str, Spec]:
        """Return what these tensors are in the files."""
        return {name: self.forms.specs[name] for name in names}

    def tensors_of(self, rank: int) -> frozenset[str]:
        """Return the names of all tensors that a rank keeps."""
        return frozenset(name for names in self.files_of(rank).values() for name in names)

    def room_of(self, rank: int) -> int:
        """Return how many bytes of host memory a rank's copy takes."""
        mine = self.tensors_of(rank)
        return sum(pages(self.forms.specs[name].size_bytes) for part in self.forms.parts for name in part.copies(mine))

    @property
    def room(self) -> int:
        """Return how much it takes where it takes most."""
        return max(self.room_of(rank) for rank in set(self.owners.values()))


def plan(forms: Forms, most_bytes: int | None, stem: str, writers: Sequence[int]) -> Plan:
    """Return the plan. The files are those that one rank alone would write; only whose they are depends on ``writers``.

    None keeps more than its equal share and one file besides: up to ``most_bytes``, or one tensor that is larger.
    """
    files = split({name: spec.size_bytes for name, spec in forms.specs.items()}, most_bytes, stem)
    sizes = {file: sum(forms.specs[name].size_bytes for name in names) for file, names in files.files.items()}
    return Plan(forms, files, shares(sizes, writers))


def fingerprint(forms: Forms, *settings: object) -> str:
    """Return what differs where two ranks are about to export different things."""
    specs = [(name, str(spec.dtype), spec.shape) for name, spec in forms.specs.items()]
    return hashlib.sha256(repr((specs, [part.names for part in forms.parts], settings)).encode()).hexdigest()
