"""Walk the tree that a generation holds, attribute by attribute, and change one place in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from milepost import Rows

Path_ = tuple[str | int, ...]
"""Keys and indices, the component's name first."""
NOT_STATE = frozenset({"$kind", "class", "way", "spaces", "algorithm"})
"""Keys that say what a thing is, and not how it stands: another one is refused at a resume."""


class Nothing:
    """Stand for what is not there."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


def items_of(tree: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each item: what is no dict of attributes, and no list of such."""
    if isinstance(tree, Rows):
        yield from ((*path, name) for name in tree.arrays)
    elif _is_attributes(tree):
        for key, value in tree.items():
            if key not in NOT_STATE:
                yield from items_of(value, (*path, key))
    elif isinstance(tree, (list, tuple)) and tree and all(map(_is_attributes, tree)):
        for index, value in enumerate(tree):
            yield from items_of(value, (*path, index))
    elif not isinstance(tree, (dict, list, tuple)) or tree:
        yield path


def at(tree: Any, path: Path_) -> Any:
    """Return what is at a path, or `NOTHING`."""
    for step in path:
        try:
            tree = tree.arrays[step] if isinstance(tree, Rows) else tree[step]
        except (LookupError, TypeError):
            return NOTHING
    return tree


def replaced(tree: Any, path: Path_, value: Any) -> Any:
    """Return a tree that differs at one path; where it is to be `NOTHING`, the key is not there. Shares all else."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if not rest and value is NOTHING:
        return {key: item for key, item in tree.items() if key != first} if isinstance(tree, dict) else tree
    if isinstance(tree, dict):
        return type(tree)({key: replaced(item, rest, value) if key == first else item for key, item in tree.items()})
    return type(tree)(replaced(item, rest, value) if index == first else item for index, item in enumerate(tree))


def text_of(path: Path_) -> str:
    """Return a path as text: ``envs/inner[0]/state/returns``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) and text else f"/{step}" if text else str(step)
    return text


def kind_of(path: Path_) -> str:
    """Return a path as text, in which environments and wrappers of one kind have one name: ``envs/inner[*]/state/returns``."""
    return re.sub(r"(inner|normalizer|workers)\[\d+\]", r"\1[*]", text_of(path))


def _is_attributes(value: Any) -> bool:
    """Return whether a value is a dict of attributes: of an object or a layer, not a generator, a queue or a reference."""
    return isinstance(value, dict) and bool(value) and value.get("$kind", "object") == "object"
