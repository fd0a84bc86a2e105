"""Bring a checkpoint that others have written into a run root: ``import``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milepost.cli import document
from milepost.cli.text import plain
from milepost.errors import MissingExtraError, NotFoundError, UsageError
from milepost.publish import layout
from milepost.publish.sane import FAR
from milepost.text import name_of

if TYPE_CHECKING:
    from milepost.pytorch.importing.base import Imported, Kind, Options

KINDS = {
    "areal": ("milepost.pytorch.importing.areal", "Areal"),
    "dcp": ("milepost.pytorch.importing.dcp_directory", "DcpDirectory"),
    "sb3": ("milepost.adapters.sb3.importing", "SavedModels"),
    "torch": ("milepost.pytorch.importing.torch_file", "TorchFiles"),
}
"""Where each kind is known, in the order in which they are asked whether something is theirs."""

_EXTRAS = {"stable_baselines3": "sb3", "gymnasium": "sb3", "torch": "torch"}
_GOES_ON = {
    "areal": "milepost.pytorch.RecoverHandler.load goes on at step {next}",
    "dcp": "milepost.pytorch.dcp.load(state, {root!r}) loads it, on any number of ranks",
    "sb3": "model.learn(..., callback=Checkpointing({root!r})) goes on from it",
    "torch": "milepost.load({root!r}) returns it; an engine with the same components resumes from it",
}


@click.command("import", short_help="Bring a checkpoint of AReaL, DCP, torch.save or Stable-Baselines3 into a run.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--into", "root", required=True, type=click.Path(file_okay=False), help="The run root it becomes a generation of.")
@click.option("--as", "kind", type=click.Choice([*KINDS]), help="What it is, where that is not seen.")
@click.option("--step", type=click.IntRange(0, FAR), help="The step it is of, where it does not say.")
@click.option("--component", "components", multiple=True, metavar="KEY=NAME", help="Which of its keys is which component.")
@click.option("--trust-pickle", is_flag=True, help="Run what pickles in it say: only if you trust whoever wrote it.")
@click.option("--add", is_flag=True, help="The run has generations already: add one more.")
@click.option("--dry-run", is_flag=True, help="Read and check it, say what would come, and write nothing.")
@click.option("--key-file", type=click.Path(), help="Sign what is written with this key. Else MILEPOST_KEY_FILE, MILEPOST_KEY.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def import_(
    path: Path,
    root: str,
    kind: str | None,
    step: int | None,
    components: tuple[str, ...],
    trust_pickle: bool,
    add: bool,
    dry_run: bool,
    key_file: str | None,
    as_json: bool,
) -> None:
    """Bring a checkpoint that others have written into a run.

    PATH is the directory of an AReaL trial, a directory of torch.distributed.checkpoint, a file of torch.save, or a zip of
    Stable-Baselines3. It becomes one generation, whole or not at all; PATH itself is never changed. Pickles are read as data:
    nothing in them is run, unless --trust-pickle says so.
    """
    check_there(path)
    try:
        from milepost.pytorch.importing.base import Options  # it brings torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "torch") from error
    options = Options(step, parsed(components), trust_pickle, key_file, add, dry_run)
    found = known(kind) if kind else recognised(path)
    imported = found.bring(path, root, options)
    if as_json:
        click.echo(document.encode("import", root, _document(imported, path, options)))
    else:
        click.echo("\n".join(_lines(imported, path, options)))


def known(name: str) -> Kind:
    """Return what knows a kind. Raises `MissingExtraError` if that needs a package which is not here."""
    module, attribute = KINDS[name]
    try:
        kind: Kind = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        raise MissingExtraError(_EXTRAS[missing], missing) from error
    return kind


def recognised(path: Path) -> Kind:
    """Return the first kind that what lies at ``path`` is of. Raises `UsageError` (kind ``unknown-source``) if it is of none."""
    missing: MissingExtraError | None = None
    for name in KINDS:
        try:
            kind = known(name)
        except MissingExtraError as error:
            missing = error
            continue
        if kind.recognise(path):
            return kind
    raise UsageError(
        "this is no checkpoint that milepost knows how to import",
        kind="unknown-source",
        hint=_instead(path),
        path=str(path),
        not_asked=f"{missing.facts['module']} is not installed" if missing else None,
    )


def _instead(path: Path) -> str:
    if (path / layout.RUN).is_file():
        return f"it is a run root of milepost's already: milepost ls {path}"
    if (path / "config.json").is_file():
        return "it is in Hugging Face's format: transformers' from_pretrained reads it, and it has nothing to resume from"
    return f"name the checkpoint itself, not a directory above it; --as {'|'.join(KINDS)} says what it is"


def check_there(path: Path) -> None:
    """Raise `NotFoundError` (kind ``source-missing``) if nothing lies at ``path``."""
    if not os.path.exists(path):
        raise NotFoundError(
            "there is nothing to import", kind="source-missing", hint="name a checkpoint's file or directory", path=str(path)
        )


def parsed(given: Iterable[str]) -> dict[str, str]:
    """Return what ``--component KEY=NAME`` says, each."""
    found = {}
    for one in given:
        key, separator, name = one.partition("=")
        if not (separator and key and name):
            raise click.BadParameter(f"{one!r} is not KEY=NAME", param_hint="--component")
        found[key] = name
    return found


def _lines(imported: Imported, path: Path, options: Options) -> Iterator[str]:
    if options.dry_run:
        yield f"{plain(path)} ({imported.kind}) can be imported: step {imported.step:,}; nothing was written"
    else:
        name = name_of(imported.generation)
        yield f"{name} of {plain(imported.root)} is step {imported.step:,} of {plain(path)} ({imported.kind})"
    yield from _listed("came", [", ".join(imported.components)])
    yield from _listed("left out", imported.left_out)
    if not options.dry_run:
        goes_on = _GOES_ON[imported.kind].format(next=f"{imported.step + 1:,}", root=imported.root)
        yield plain(f"next: milepost verify {imported.root}; then {goes_on}")


def _listed(head: str, items: Iterable[str]) -> Iterator[str]:
    for item in items:
        yield f"  {head:<9} {plain(item)}"
        head = ""


def _document(imported: Imported, path: Path, options: Options) -> document.Document:
    return {
        "source": str(path),
        "kind": imported.kind,
        "dry_run": options.dry_run,
        "run_id": imported.run_id,
        "generation": imported.generation,
        "step": imported.step,
        "components": list(imported.components),
        "left_out": list(imported.left_out),
    }
