"""Give an env a new world in each reset. Imported at its first use, since it derives from a class of Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium

from milepost.envs import box2d
from milepost.errors import UsageError


class FreshWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Make a new Box2D world in each reset of ``BipedalWalker-v3`` or ``BipedalWalkerHardcore-v3``, so that it can be captured.

    ::

        env = milepost.envs.FreshWorld(gymnasium.make("BipedalWalker-v3"))

    **It changes training**: Gymnasium's env takes its world from episode to episode, and with it the order in which contacts
    are solved; with this wrapper every episode but the first differs from what it would have been, in its last bits first. A
    run with it is as good as one without, but it is another run: wrap the env from the beginning, and in every run that is
    to be compared. The wrapper is a layer like any other: it stands in `describe`, in the manifest, and a checkpoint taken
    with it does not fit an env without it.

    Raises `UsageError` for every other env: those need no new world, or nobody knows that one would do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        if not box2d.keeps_its_world(env.unwrapped):
            raise UsageError(
                "only BipedalWalker needs a new world in each reset",
                kind="usage",
                hint="leave the wrapper away",
                env=type(env.unwrapped).__name__,
            )
        super().__init__(env)
        box2d.freshen(env.unwrapped)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env in a new world."""
        # Again: an env that was pickled or copied is built anew within.
        box2d.freshen(self.env.unwrapped)
        return self.env.reset(seed=seed, options=options)

    def milepost_get_state(self) -> dict[str, Any]:
        """Return nothing: the world belongs to the env within."""
        return {}

    def milepost_set_state(self, state: Any) -> None:
        """Do nothing."""
