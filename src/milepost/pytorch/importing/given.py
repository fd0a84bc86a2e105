"""Let a state that was read somewhere stand for the object that it is to be loaded into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milepost.errors import InternalError


@dataclass(frozen=True, slots=True)
class Given:
    """Be saved as an object with this state: what resumes from it hands it to the ``load_state_dict`` of the live one."""

    state: Any

    def state_dict(self) -> Any:
        """Return the state."""
        return self.state

    def load_state_dict(self, state: Any, /) -> None:
        """Raise `InternalError`: nobody loads into it."""
        raise InternalError("what is imported was loaded into", kind="given", state=type(state).__name__)
