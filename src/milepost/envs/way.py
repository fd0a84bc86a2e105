"""Say what a way to capture one layer of an environment has to offer."""

from __future__ import annotations

from typing import Any, Protocol

from milepost.envs.plain import ABSENT, Recorder, Refiller
from milepost.records import Difference


class Way(Protocol):
    """Be one way to read a single layer's state, and to write it back in place. What has a body here is optional."""

    name: str

    def fits(self, env: Any) -> bool:
        """Return whether this way applies to ``env``: by its class, not by what it holds at this moment."""
        ...

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return the layer's state as a plain tree; None, and a word in ``recorder.left_out``, if it cannot be had now."""
        ...

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Bring the layer back to what `capture` returned. Never called with None."""
        ...

    def attach(self, env: Any) -> None:  # noqa: ARG002
        """Make ready for captures to come. Called when an engine first sees the env, and again whenever one does."""
        return

    def within(self, env: Any) -> list[str]:  # noqa: ARG002
        """Describe the envs in this layer that are no attributes of it, in a line each."""
        return []

    def observed(self, env: Any) -> Any:  # noqa: ARG002
        """Return what the layer shows now, for the proof on restore, or `ABSENT`. Must change nothing and draw nothing."""
        return ABSENT

    def whole(self, state: Any) -> bool:
        """Return whether a captured state is all of it. A layer that is not whole has to be reset after a restore."""
        return state is not None

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:  # noqa: ARG002
        """Return why a captured state cannot be brought back here; in it a `LeafSpec` may stand for an array."""
        return []

    def unlike(self, env: Any, state: Any, path: str) -> Difference | None:  # noqa: ARG002
        """Return where a layer does not hold the state to which it was just brought back."""
        return None
