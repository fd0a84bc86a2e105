"""Import a directory that ``torch.distributed.checkpoint`` has written: `milepost.pytorch.dcp.load` loads what comes of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from milepost.errors import UsageError
from milepost.pytorch.dcp.naming import checked, component_of
from milepost.pytorch.importing.base import Imported, Options, check_target, looking_at
from milepost.pytorch.importing.dcp_source import is_dcp, read_chunk, read_source, read_value
from milepost.pytorch.importing.dcp_spans import DcpSource
from milepost.pytorch.importing.publishing import Content, Piece, publish

Key = tuple[str | int, ...]

_STEP = re.compile(r"(?<!\d)\d{1,12}\Z", re.ASCII)


class DcpDirectory:
    """Know directories of ``torch.distributed.checkpoint``: ``.metadata`` with ``.distcp`` files, or shards in safetensors."""

    name = "dcp"

    def recognise(self, path: Path) -> bool:
        return is_dcp(path)

    def bring(self, path: Path, root: str, options: Options) -> Imported:
        """Import it. The step is ``options.step``, or the number that the directory's name ends in, or 0."""
        check_target(root, options)
        with looking_at(path):
            source = read_source(path)
        content = Content(ranks=source.ranks)
        add(content, source, lambda fqn: (fqn, source.paths.get(fqn, (fqn,))), trust=options.trust_pickle)
        check_keys(options.components, content.paths)
        components = checked(options.components)
        names = tuple(dict.fromkeys(component_of(fqn, components) for fqn in content.paths))
        step, left_out = _step_of(path, options)
        if options.dry_run:
            return Imported(self.name, root, "", 0, step, names, (verification([source], dry_run=True), *left_out))
        saved = publish(content, root, step, options, components=options.components, counters={})
        left_out = (verification([source]), *left_out)
        return Imported(self.name, root, saved.run_id, saved.number, saved.step, names, left_out)


def verification(sources: Iterable[DcpSource], *, dry_run: bool = False) -> str:
    """Say what is known of the bytes that came: DCP keeps no digests, and where torch keeps checksums they were compared."""
    if dry_run:
        return "verification: DCP keeps no digests; tensors are compared with the CRC-32 of torch.save when they are written"
    unchecked = sorted(name for source in sources for name in source.unchecked)
    if not unchecked:
        return "verification: DCP keeps no digests; tensors and values were compared with the CRC-32 of torch.save"
    return (
        f"verification: {len(unchecked):,} tensors or values, {unchecked[0]} first, are not verified by their writer; nobody can "
        "tell whether their bytes are those that were saved"
    )


def add(content: Content, source: DcpSource, placed: Callable[[str], tuple[str, Key]], *, trust: bool) -> None:
    """Add all that a source holds; ``placed`` says of a name there which it has here, and where in the state dict it stands.

    Tensors are read when they are written, values now.
    """
    content.sources.append(source.check_unchanged)
    for fqn, tensor in source.tensors.items():
        name, path = placed(fqn)
        pieces = {chunk.offsets: Piece(chunk.sizes, partial(read_chunk, source, fqn, chunk)) for chunk in tensor.chunks}
        content.add_tensor(path, tensor.dtype, tensor.size, pieces, name)
    for fqn in source.values:
        name, path = placed(fqn)
        content.add_value(path, read_value(source, fqn, trust=trust), name)


def check_keys(asked: Collection[str], there: Collection[str]) -> None:
    """Raise `UsageError` (kind ``no-such-key``) for a component that was asked for and whose key is not there."""
    for key in asked:
        if not any(fqn == key or fqn.startswith(f"{key}.") for fqn in there):
            heads = dict.fromkeys(fqn.partition(".")[0] for fqn in there)
            raise UsageError(
                "there is no such key in what is to be imported",
                kind="no-such-key",
                hint=f"its keys are {', '.join([*heads][:20])}",
                key=key,
            )


def _step_of(path: Path, options: Options) -> tuple[int, tuple[str, ...]]:
    if options.step is not None:
        return options.step, ()
    number = _STEP.search(os.path.basename(os.path.abspath(path)))
    if number is None:
        return 0, ("the step: neither the directory nor its name says it, so it is 0; --step says another",)
    return int(number[0]), ()
