"""Run work in a thread of which can be said for sure that it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Member(threading.Thread):
    """Be a daemon thread of which can be said for sure that it has ended its work.

    Of others a Ctrl-C that strikes in ``join()`` has Python up to 3.12 believe it, while they go on.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._over = threading.Event()

    def run(self) -> None:
        """Work. Called by the thread."""
        try:
            super().run()
        finally:
            self._over.set()

    @property
    def works(self) -> bool:
        """Say whether it has begun and not ended."""
        return self.is_alive() or (self.ident is not None and not self._over.is_set())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, and say whether it has. May be interrupted, and called again."""
        self.join(timeout_s)
        return not self.is_alive() and self._over.wait(timeout_s)

    def wait_out(self) -> None:
        """Wait until it has ended, whatever strikes meanwhile; that is raised then."""
        struck: BaseException | None = None
        while self.works:
            try:
                self.wait()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: told when nothing of the caller's is used any more
                struck = error
        if struck is not None:
            raise struck
