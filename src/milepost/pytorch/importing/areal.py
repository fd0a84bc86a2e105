"""Import what AReaL's RecoverHandler has saved, in both of its layouts, so that milepost's goes on from there.

The newer layout has immutable generations, and a pointer, ``LATEST``, that says which counts; a generation that it does not
name may be half of one, and is left alone, as AReaL leaves it. The older one, of runs started with one process a rank,
overwrites ``recover_info/`` and ``<engine>/recover_checkpoint/`` in place. The payloads of both are what
``torch.distributed.checkpoint`` writes of ``{"dcp": {"model": ..., "optim": ...}}``; those of Megatron are its own.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.clock import SystemClock
from milepost.errors import NotFoundError, UsageError
from milepost.publish import layout
from milepost.publish.sane import FAR
from milepost.publish.signed import open_root
from milepost.publish.view import read
from milepost.pytorch.dcp.own import KEY as OWN
from milepost.pytorch.dcp.own import key_of_rank
from milepost.pytorch.importing.base import (
    OLDER,
    Imported,
    KeyFile,
    Options,
    check_no_link,
    check_target,
    damaged,
    is_plain_file,
    looking_at,
    not_of_this_kind,
    open_within,
    read_whole,
    size_of,
)
from milepost.pytorch.importing.dcp_directory import Key, add, verification
from milepost.pytorch.importing.dcp_source import read_source
from milepost.pytorch.importing.dcp_spans import DcpSource
from milepost.pytorch.importing.publishing import Content, publish
from milepost.pytorch.importing.restricted import read_pickle, read_torch
from milepost.pytorch.recover.payload import DATA, LR_SCHEDULER, MODEL, OPTIM, RECOVER, check_engines, components_of, progress_of
from milepost.pytorch.shards import Own
from milepost.pytorch.steps import StepInfo

log = logging.getLogger("milepost")

GENERATIONS, MANIFEST, PAYLOADS = "checkpoint_generations", "manifest", "payloads"
OLD_MANIFEST, OLD_PAYLOAD = "recover_info", "recover_checkpoint"
STEP_INFO, STATS, DATALOADER = "step_info.json", "stats_logger_info.json", "dataloader_info.pkl"
COUNTERS = ("saver_info.json", "evaluator_info.json", "checkpoint_info.json")
_SAMPLER_EPOCH = "_areal_distributed_sampler_epoch"
_STEP_FIELDS = ("epoch", "epoch_step", "global_step", "steps_per_epoch")
_MOST_JSON_BYTES = 16 << 20
_MOST_PICKLE_BYTES = 4 << 30
_LR_SCHEDULER_FILE = "lr_scheduler.pt"

_NO_GENERATORS = "random generators: AReaL saves none of FSDP's and Archon's, so sampling goes on with other numbers"
_NO_COUNTERS = (
    "counters of saver, evaluator and recovery: AReaL's would bring their old frequencies with them; milepost's are due at each "
    "multiple of their interval, counted from step 0"
)
_AHEAD = (
    "batches that were drawn and not yet trained: AReaL keeps the position of the generator, which is ahead of training, so they "
    "are passed over"
)
_IN_PLACE = "whether weights and counters are of the same step: this layout is overwritten in place, one file after another"
_NAMED = "whether AReaL had finished it: it was named itself, and not by LATEST"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Say where the parts of one checkpoint of AReaL's lie."""

    root: Path
    manifest: str
    """A directory within ``root``, and so are the payloads, by engine."""
    payloads: Mapping[str, str]
    step: int | None
    """What the pointer says."""
    remarks: tuple[str, ...] = ()


class Areal:
    """Know the directory of an AReaL trial, or one generation in it."""

    name = "areal"

    def recognise(self, path: Path) -> bool:
        try:
            return (path / GENERATIONS).is_dir() or _is_generation(path) or bool(_old_engines(path))
        except OSError:
            return False

    def bring(self, path: Path, root: str, options: Options) -> Imported:
        """Import the checkpoint that AReaL would resume from. ``root`` may be the trial's own directory."""
        if options.step is not None or options.components:
            raise UsageError(
                "AReaL says itself of which step a checkpoint is, and what its engines are",
                kind="not-asked",
                hint="leave out --step and --component",
            )
        check_target(root, options)
        with looking_at(path):
            found = resolve(path)
            step = _step_info(found)
            sources = {engine: read_source(found.root / directory) for engine, directory in found.payloads.items()}
            content, remarks = _content(found, sources, step, options)
        components = components_of(found.payloads)
        names = tuple(dict.fromkeys(_component(fqn, components) for fqn in content.paths))
        if options.dry_run:
            remarks = (verification(sources.values(), dry_run=True), *remarks)
            return Imported(self.name, root, "", 0, step.global_step, names, remarks)
        counters = {"epochs": step.epochs_done}
        saved = publish(content, root, step.global_step, options, components=components, counters=counters)
        remarks = (verification(sources.values()), *remarks)
        return Imported(self.name, root, saved.run_id, saved.number, saved.step, names, remarks)


def import_areal_in_place(
    root: str | os.PathLike[str], *, key_file: KeyFile = None, trust_pickle: bool = False
) -> Imported | None:
    """Import AReaL's own checkpoint that lies in ``root``, if there is one and no generation of milepost's yet.

    AReaL's ``LATEST`` stays, under another name. Interrupted anywhere, it can be called again. Returns None if there is nothing
    to import; raises what `Areal.bring` does if what is there cannot be: training does not begin anew over it.
    """
    place = Path(root)
    try:
        if read(open_root(place, SystemClock(), key_file, only_to_read=True)).head is not None:
            return None
    except NotFoundError:
        pass  # no run of milepost's has begun here
    kind = Areal()
    if not kind.recognise(place):
        return None
    try:
        return kind.bring(place, str(root), Options(trust_pickle=trust_pickle, key_file=key_file))
    except NotFoundError as error:
        if error.kind != "nothing-published":
            raise
        log.warning("%s", error.message)
        return None


# --- which checkpoint ---


def resolve(path: Path) -> Checkpoint:
    """Return the checkpoint that AReaL would resume from: the one its pointer names, else the older layout's.

    Raises `CorruptError` (kind ``damaged-source``) for a pointer that is torn, or names what is not there; `NotFoundError`
    (kind ``nothing-published``) where no pointer was ever written; `UsageError` (kind ``unknown-source``) for what is no trial.
    """
    found = _resolved(path)
    for directory in found.payloads.values():
        check_no_link(path, directory)
    return found


def _resolved(path: Path) -> Checkpoint:
    if _is_generation(path):
        engines = _engines(sorted(os.listdir(path / PAYLOADS)), path)
        payloads = {engine: f"{PAYLOADS}/{engine}" for engine in engines}
        return Checkpoint(path, MANIFEST, payloads, None, (_NAMED,))
    if not Areal().recognise(path):
        hint = f"name the trial's own directory, in which {GENERATIONS} or {OLD_MANIFEST} lies, or one generation in it"
        raise not_of_this_kind(path, "the directory of a trial of AReaL's", hint)
    pointer = _pointer_name(path)
    if pointer is not None:
        return _pointed_at(path, pointer)
    old = _old_engines(path)
    if old:
        payloads = {engine: f"{engine}/{OLD_PAYLOAD}" for engine in _engines(old, path)}
        return Checkpoint(path, OLD_MANIFEST, payloads, None, (_IN_PLACE,))
    raise NotFoundError(
        "there is no LATEST: AReaL has published none of the generations that lie here, and would start anew",
        kind="nothing-published",
        hint=_name_one(path),
        path=str(path),
    )


def _name_one(path: Path) -> str:
    names = sorted(name for name in os.listdir(path / GENERATIONS) if _is_generation(path / GENERATIONS / name))
    example = names[-1] if names else "generation_step..."
    return f"nothing was written; if you know one of the generations to be whole, name it: {path}/{GENERATIONS}/{example}"


def _is_generation(path: Path) -> bool:
    return is_plain_file(path / MANIFEST / STEP_INFO) and (path / PAYLOADS).is_dir()


def _old_engines(path: Path) -> list[str]:
    if not (path / OLD_MANIFEST).is_dir():
        return []
    return sorted(name for name in os.listdir(path) if (path / name / OLD_PAYLOAD).is_dir())


def _pointer_name(path: Path) -> str | None:
    """Return which file is AReaL's pointer: ``LATEST``, or what became of it when milepost wrote its own."""
    here = path / layout.LATEST
    if os.path.lexists(here):
        with open_within(path, layout.LATEST) as file:
            if b'"manifest_digest":"' not in file.read(4096):
                return layout.LATEST  # not milepost's; torn perhaps, and then that is told
    asides = [name for name in os.listdir(path) if layout.is_aside(name) and name.startswith(layout.LATEST)]
    return max(asides, key=lambda name: (os.lstat(path / name).st_mtime_ns, name), default=None)


def _pointed_at(path: Path, pointer: str) -> Checkpoint:
    hint = _name_one(path) if (path / GENERATIONS).is_dir() else OLDER
    said = _json(path, pointer, hint)
    wrong = _wrong_with(said)
    if wrong:
        raise damaged(f"{pointer} is not a pointer of AReaL's: {wrong}", path, hint=hint, file=pointer)
    generation = f"{GENERATIONS}/{said['generation']}"
    payloads = {engine: f"{generation}/{PAYLOADS}/{engine}" for engine in _engines(said["engines"], path)}
    for directory in (f"{generation}/{MANIFEST}", *payloads.values()):
        if not (path / directory).is_dir():
            raise damaged(f"{pointer} names a generation of which a part is missing", path, hint=hint, missing=directory)
    return Checkpoint(path, f"{generation}/{MANIFEST}", payloads, said["global_step"])


def _wrong_with(said: Any) -> str:
    """Return what is wrong with a pointer, as AReaL checks it; empty if nothing is. Fields that nobody knows are no fault."""
    if not isinstance(said, dict):
        return "it is no object"
    missing = [name for name in ("format_version", "generation", "global_step", "engines") if name not in said]
    if missing:
        return f"it has no {missing[0]}"
    step, engines = said["global_step"], said["engines"]
    if type(said["format_version"]) is not int or said["format_version"] != 1:
        return f"format_version {said['format_version']!r}, and only 1 is known"
    if type(step) is not int or step < 0:
        return "global_step is no number of a step"
    if said["generation"] != f"generation_step{step:08d}":
        return "its generation is not that of its global_step"
    if not isinstance(engines, list) or not engines or not all(isinstance(name, str) for name in engines):
        return "engines is no list of names"
    if any(name in ("", ".", "..") or "/" in name or "\0" in name for name in engines):
        return "an engine's name is a path"
    if len(set(engines)) < len(engines):
        return "an engine is named twice"
    return ""


def _engines(names: list[str], path: Path) -> tuple[str, ...]:
    if not names:
        raise damaged("it has no payload of any engine", path)
    return check_engines(names)


# --- what is in it ---


def _content(
    found: Checkpoint, sources: Mapping[str, DcpSource], step: StepInfo, options: Options
) -> tuple[Content, tuple[str, ...]]:
    remarks = [*found.remarks]
    content = Content()
    schedulers = []
    for engine, source in sources.items():
        payload = source.directory
        add(content, source, _placing(source, engine), trust=options.trust_pickle)
        if is_plain_file(payload / _LR_SCHEDULER_FILE):
            schedulers.append(engine)
            content.add_value((engine, LR_SCHEDULER), Own(_torch(payload, _LR_SCHEDULER_FILE, options)))
    without = [engine for engine in found.payloads if engine not in schedulers and _has_optimizer(content, engine)]
    if without:
        remarks.append(
            f"LR schedulers of {', '.join(without)}: AReaL saved none; a resume keeps the live ones as they are, and says so"
        )
    remarks += _add_data(content, found, options)
    progress = progress_of(step, found.payloads, stats_logger=_json(found.root, f"{found.manifest}/{STATS}"))
    content.add_value((RECOVER,), Own(progress))
    return content, (*remarks, _AHEAD, _NO_GENERATORS, _NO_COUNTERS, *_unknown_files(found))


def _placing(source: DcpSource, engine: str) -> Callable[[str], tuple[str, Key]]:
    """Return where what AReaL calls ``dcp.model.w`` stands in a generation: under its engine."""

    def placed(fqn: str) -> tuple[str, Key]:
        path = source.paths.get(fqn, ())
        if len(path) < 2 or path[0] != "dcp" or path[1] not in (MODEL, OPTIM):
            raise damaged("a payload holds what AReaL does not write", source.directory, name=fqn)
        moved = (engine, *path[1:])
        return ".".join(map(str, moved)), moved

    return placed


def _has_optimizer(content: Content, engine: str) -> bool:
    return any(path[:2] == (engine, OPTIM) for path in content.paths.values())


def _add_data(content: Content, found: Checkpoint, options: Options) -> list[str]:
    """Add the positions of the data: one that all ranks share, or one for each of the ranks that had saved."""
    name = f"{found.manifest}/{DATALOADER}"
    with _file(found.root, name) as file:
        data = read_whole(file, found.root / name, _MOST_PICKLE_BYTES)
    what = "the position of the data (dataloader_info.pkl)"
    states = read_pickle(data, found.root / name, trust=options.trust_pickle, what=what)
    remarks = []
    states = states if isinstance(states, list) else [states]
    for rank, state in enumerate(states):
        if isinstance(state, dict) and _SAMPLER_EPOCH in state:
            state = {**state}
            epoch = state.pop(_SAMPLER_EPOCH)
            remarks.append(f"the sampler's epoch ({epoch}): it is step_info.epoch, for sampler.set_epoch")
        content.add_value((OWN, key_of_rank(rank)), Own({DATA: state}))
    content.ranks = max(1, len(states))
    return [*dict.fromkeys(remarks)]


def _step_info(found: Checkpoint) -> StepInfo:
    said = _json(found.root, f"{found.manifest}/{STEP_INFO}")
    try:
        numbers = {name: said[name] for name in _STEP_FIELDS}
        if not all(type(number) is int and number <= FAR for number in numbers.values()):
            raise TypeError(STEP_INFO)
        step = StepInfo(**numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(
            f"{STEP_INFO} does not say which step it is of", found.root, file=f"{found.manifest}/{STEP_INFO}"
        ) from error
    if found.step is not None and step.global_step != found.step:
        raise damaged(f"{STEP_INFO} is of another step than LATEST", found.root, step_info=step.global_step, latest=found.step)
    return step


def _unknown_files(found: Checkpoint) -> list[str]:
    known = {STEP_INFO, STATS, DATALOADER, *COUNTERS}
    others = sorted(set(os.listdir(found.root / found.manifest)) - known)
    return [f"{', '.join(others[:10])}: milepost does not know what that is"] if others else []


def _component(fqn: str, components: Mapping[str, str]) -> str:
    found = (name for key, name in components.items() if fqn == key or fqn.startswith(f"{key}."))
    return next(found, "extra")


def _file(root: Path, name: str) -> Any:
    try:
        return open_within(root, name)
    except NotFoundError as error:
        raise damaged("a file that belongs to it is missing", root, file=name) from error


def _json(root: Path, name: str, hint: str = OLDER) -> Any:
    with _file(root, name) as file:
        data = read_whole(file, root / name, _MOST_JSON_BYTES)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged("a file is torn, or no JSON", root, hint=hint, file=name, size_bytes=len(data)) from error


def _torch(root: Path, name: str, options: Options) -> Any:
    with _file(root, name) as file:
        what = "the LR scheduler's state (lr_scheduler.pt)"
        return read_torch(file, root / name, trust=options.trust_pickle, what=what, size_bytes=size_of(file))
