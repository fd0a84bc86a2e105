"""Bring a file that ``torch.save`` has written into a run root: a model's state, a training checkpoint, Lightning's ``.ckpt``."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from milepost.engine.oneshot import WHOLE, take_in
from milepost.engine.session import Order
from milepost.errors import UsageError
from milepost.pytorch.importing.base import (
    Imported,
    Options,
    check_stamp,
    check_target,
    damaged,
    is_plain_file,
    open_source,
    size_of,
    stamp_of,
)
from milepost.pytorch.importing.checksums import PICKLE, check_sums
from milepost.pytorch.importing.restricted import check_archive, read_torch
from milepost.pytorch.importing.usual_keys import EXTRA, saveable, sort_out
from milepost.records import Exactness
from milepost.state.tree import flatten

_ZIP, _LEGACY = b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""What a file begins with: an archive, or the number that torch wrote before there were archives."""


class TorchFiles:
    """Know what ``torch.save`` writes."""

    name = "torch"

    def recognise(self, path: Path) -> bool:
        """Return whether such a file lies there, whole or not."""
        path = Path(os.path.realpath(path))
        if not is_plain_file(path):
            return False
        try:
            with path.open("rb") as file:
                head = file.read(512)
                if head.startswith(_LEGACY):
                    return True
                name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
                return head.startswith(_ZIP) and (name.endswith(PICKLE.encode()) or _has_record(file))
        except OSError:
            return False

    def bring(self, path: Path, root: str, options: Options) -> Imported:
        """Publish what the file holds, each of its keys as the component that it stands for."""
        check_target(root, options)
        with open_source(path) as file:
            stamp = stamp_of(file)
            left_out, value = _read(file, path, options)
            found = sort_out(value, options.components)
            left_out += saveable(found, flatten)
            step = found.step if options.step is None else options.step
            if step is None:
                step = 0
                left_out.append("the step: the file does not say it, so it is 0; --step says another")
            exactness: dict[str, tuple[Exactness, str]] = {EXTRA: ("exact", WHOLE)} if found.whole else {}
            order = Order(step, "imported", counters=found.counters, exactness=exactness)
            for component, state in found.state.items():
                flatten(state, component)  # what cannot be saved is told before anything is made at the root
            number, run_id = 0, ""
            if not options.dry_run:
                summary = take_in(
                    root,
                    found.state,
                    order,
                    fingerprint={},
                    add=options.add,
                    key_file=options.key_file,
                    check_source=lambda: check_stamp(file, stamp, path),
                )
                number, run_id = summary.number, summary.run_id
        return Imported(self.name, root, run_id, number, step, tuple(found.state), tuple(left_out))


def is_torchs(head: bytes) -> bool:
    """Return whether a file that begins so may be one of torch's."""
    return head.startswith((_ZIP, _LEGACY))


def _read(file: BinaryIO, path: Path, options: Options) -> tuple[list[str], Any]:
    size_bytes, is_archive = size_of(file), file.read(len(_ZIP)) == _ZIP
    left_out = []
    if is_archive:
        check_archive(file, path, size_bytes)
        if not check_sums(file, path):
            left_out.append("checksums: the file was written without, so damage in its tensors cannot be seen")
    else:
        left_out.append("checksums: a file of torch's old format has none, so damage in its tensors cannot be seen")
    file.seek(0)
    trust = options.trust_pickle
    try:
        return left_out, read_torch(file, path, trust=trust, what="the file", size_bytes=size_bytes, mapped=is_archive)
    except UsageError as error:
        if is_archive or file.tell() < size_bytes:
            raise
        # It ends within a name, and half of it is a name that nobody knows.
        raise damaged("it ends in the middle", path) from error


def _has_record(file: BinaryIO) -> bool:
    return any(name.endswith(PICKLE) and name.count("/") == 1 for name in _names(file))


def _names(file: BinaryIO) -> list[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return []
