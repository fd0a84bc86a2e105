"""Choose a generation on all ranks alike, and read what is small of it: everything that is no tensor of the state dict.

Nothing is changed here. The tensors come afterwards, through DCP, from the generation that was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from milepost.engine.reader import Source
from milepost.engine.reads import Reads
from milepost.errors import CorruptError, MismatchError, NotFoundError, UsageError
from milepost.lifecycle.recover import Skipped
from milepost.lifecycle.retain import Keep
from milepost.pytorch.dcp.choosing import Chosen, Seen, Which, choose_generation, numbered, seen
from milepost.pytorch.dcp.own import KEY as OWN
from milepost.pytorch.dcp.own import key_of_rank
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.recover.payload import RECOVER
from milepost.pytorch.shards import Own
from milepost.records import Manifest
from milepost.state.inflate import inflate
from milepost.state.opaque import Opaque
from milepost.store.base import Store

log = logging.getLogger("milepost")

Path = tuple[str | int, ...]
_DAMAGED = ("damaged-leaf", "damaged-tree", "damaged-progress")


@dataclass(frozen=True, slots=True)
class Found:
    """Hold a generation that all ranks have chosen, and its values."""

    chosen: Chosen
    tensors: Mapping[Path, TensorStorageMetadata]
    """Where in the state dict there are tensors, and which."""
    values: Mapping[Path, Any]
    """What else there is, without what ranks have by themselves."""
    own: Sequence[Mapping[str, Any]]
    """What ranks have by themselves: of this rank, if as many have saved as there are now, else of each of them."""

    @property
    def progress(self) -> Mapping[str, Any]:
        """Return what the handler itself has saved."""
        progress: Mapping[str, Any] = self.values[(RECOVER,)]
        return progress

    def below(self, *path: str) -> dict[Path, Any]:
        """Return the values below a place in the state dict, by the rest of their paths."""
        return {key[len(path) :]: value for key, value in self.values.items() if key[: len(path)] == path}

    def tensors_below(self, *path: str) -> dict[Path, TensorStorageMetadata]:
        """Return the tensors below a place in the state dict, by the rest of their paths."""
        return {key[len(path) :]: value for key, value in self.tensors.items() if key[: len(path)] == path}


@dataclass(frozen=True, slots=True)
class Choosing:
    """Hold what a generation is chosen by."""

    store: Store
    ranks: Ranks
    keep: Keep
    trust_pickle: bool
    loading: Callable[[Manifest], object] = lambda _: None
    """Is told on each rank which generation is about to be read: if that kills the process, somebody knows what did."""

    def find(self, which: Which, rejected: list[Skipped]) -> Found | None:
        """Return what all ranks are to load; None if there is nothing. What is damaged is added to ``rejected``, on all alike.

        Raises `CorruptError` if there is nothing sound, or for a damaged one that was asked for by its number; `UsageError`
        (kind ``not-recover``) for a generation that somebody else has saved.
        """
        while True:
            told = None
            try:
                told = self.ranks.told_by_first(self.ranks.together(self._choose_first, which, rejected))
                return None if told is None else self.ranks.together(self._read, told)
            except CorruptError as error:
                number = told[0].number if told is not None else error.facts.get("generation")
                if isinstance(which, int) or error.kind not in _DAMAGED or not isinstance(number, int):
                    raise
                rejected.append(Skipped(number, "damaged", error.message))

    def _choose_first(self, which: Which, rejected: Sequence[Skipped]) -> tuple[Seen, tuple[Skipped, ...]] | None:
        if not self.ranks.is_first:
            return None
        try:
            chosen = choose_generation(self.store, which, rejected, keep=self.keep, trust_pickle=self.trust_pickle)
        except NotFoundError as error:
            if error.kind != "no-generation":
                raise
            return None
        except MismatchError as error:
            raise _not_recover(self.store.url, error.facts.get("generation")) from error
        if chosen.not_taken:
            log.warning("%s", chosen.not_taken)
        return seen(chosen), chosen.skipped

    def _read(self, told: tuple[Seen, tuple[Skipped, ...]]) -> Found:
        chosen = numbered(self.store, told[0], trust_pickle=self.trust_pickle)
        chosen = Chosen(chosen.manifest, chosen.index, told[1])
        self.loading(chosen.manifest)
        paths = _paths(chosen)
        if (RECOVER,) not in paths.values():
            raise _not_recover(self.store.url, chosen.manifest.number)
        described = chosen.index.metadata.state_dict_metadata
        tensors = {path: it for fqn, path in paths.items() if isinstance(it := described[fqn], TensorStorageMetadata)}
        mine = [key_of_rank(rank) for rank in self._own_ranks(chosen)]
        wanted = [fqn for fqn, path in paths.items() if path not in tensors and (path[0] != OWN or path[1] in mine)]
        values = self._values(chosen, wanted)
        by_path: dict[Path, Any] = {paths[fqn]: value.value if isinstance(value, Own) else value for fqn, value in values.items()}
        own = [by_path.pop((OWN, key), {}) for key in mine]
        return Found(chosen, tensors, by_path, own)

    def _own_ranks(self, chosen: Chosen) -> Iterable[int]:
        # Where others have saved than load now, what each of them had is compared: what was the same on all comes back.
        if chosen.index.ranks == self.ranks.count:
            return [self.ranks.rank]
        return range(chosen.index.ranks)

    def _values(self, chosen: Chosen, fqns: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with Reads(self.store, chosen.manifest, threads=1) as reads:
            for fqn in fqns:
                stored = chosen.index.entries[fqn]
                source = Source(reads, stored.component)
                value: Any = inflate(stored.node, stored.component.leaves, source, trust_pickle=self.trust_pickle)
                found[fqn] = value.value if stored.kind == "pickle" and isinstance(value, Opaque) else value
        return found


def _not_recover(root: str, generation: object) -> UsageError:
    return UsageError(
        "there is a run in this directory that a RecoverHandler has not saved",
        kind="not-recover",
        hint=f"choose another trial, or set that run aside: milepost reset {root}",
        root=root,
        generation=generation,
    )


def _paths(chosen: Chosen) -> dict[str, Path]:
    planned = chosen.index.metadata.planner_data
    known: Mapping[str, Any] = planned if isinstance(planned, Mapping) else {}
    return {fqn: tuple(known.get(fqn, (fqn,))) for fqn in chosen.index.entries}


def nested(values: Mapping[Path, Any]) -> Any:
    """Return values by their paths as the dicts and lists that they came from."""
    root: Any = {}
    for path, value in values.items():
        place = root
        for key, following in zip(path, (*path[1:], None), strict=True):
            made: Any = value if following is None else [] if isinstance(following, int) else {}
            if isinstance(place, list):
                place.extend([None] * (int(key) + 1 - len(place)))
                place[int(key)] = made if following is None or place[int(key)] is None else place[int(key)]
            elif following is None:
                place[key] = made
            else:
                place.setdefault(key, made)
            place = place[key]
    return root
