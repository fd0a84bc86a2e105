"""Find the spaces of an environment, and compare them with the saved one's: networks and what they learn have their shape."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from milepost.envs.plain import is_space
from milepost.records import Difference

_LONGEST = 300


def spaces_of(env: Any, inner: Sequence[Any]) -> dict[str, str] | None:
    """Return a layer's spaces as text, or None if they are those of the (first) layer within."""
    own = _texts(env)
    return own if not inner or own != _texts(inner[0]) else None


def held_by(env: Any) -> dict[str, Any]:
    """Return the spaces that a layer or its class holds, by attribute; not those that it passes on from the layer within."""
    named: dict[str, Any] = {}
    for owner in (*reversed(type(env).__mro__), env):
        named |= vars(owner)
    return {name: value for name, value in named.items() if is_space(value)}


def space_differences(env: Any, node: dict[str, Any], path: str) -> list[Difference]:
    """Return which spaces of this layer are not the saved ones. Nodes of earlier versions do not say."""
    saved = _saved(node)
    if saved is None:
        return []
    live = _texts(env)
    return [Difference(f"{path}.{name}", saved[name], live[name], "env") for name in live if saved[name] != live[name]]


def _saved(node: dict[str, Any]) -> dict[str, str] | None:
    while node.get("spaces") is None:
        if "spaces" not in node or not node["inner"]:
            return None
        node = node["inner"][0]
    return dict(node["spaces"])


def _texts(env: Any) -> dict[str, str]:
    mode = vars(env).get("autoreset_mode")
    # Not a space, but as little a thing to change: an episode that the next step was to begin would never begin.
    modes = {} if mode is None else {"autoreset_mode": str(mode.value)}
    return {name: _short(str(getattr(env, name, None))) for name in ("observation_space", "action_space")} | modes


def _short(text: str) -> str:
    """Return ``text``, or its beginning and a digest: in a tree that is compared, long texts are not there to be read."""
    return text if len(text) <= _LONGEST else f"{text[:200]} ... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
