"""Keep the directories of a run root: each made durable before a name in it is, and none of them a link."""

from __future__ import annotations

import errno
import os

from milepost.store.posix import Posix, failures_of


class Directories:
    """Make and watch the directories at and below ``root``."""

    def __init__(self, root: str, posix: Posix) -> None:
        self._root = root
        self._posix = posix
        self._durable: set[str] = set()

    def forget(self) -> None:
        """Take nothing for durable any more: somebody may have removed and made anew what was."""
        self._durable.clear()

    def keep(self, directory: str) -> None:
        """Make a directory, and whatever is missing above it, each durable in its parent; once in this store's life.

        It is done for directories that are there already, too: a killed predecessor may have made one and not synced it.
        Above the root only what is missing is made.
        """
        if directory in self._durable and (directory == self._root or self._posix.is_directory(directory)):
            # One that was removed under us is made anew. Not the root itself: where that is gone, or is another by now, its
            # writer is told so, and leaves nothing of its own there.
            return
        parent, made = os.path.dirname(directory), False
        if directory.startswith(self._root + os.sep) or not self._posix.is_directory(parent):
            self.keep(parent)
        if not self._posix.is_directory(directory):
            try:
                self._posix.mkdir(directory)
                made = True
            except FileExistsError:
                # Another process was faster; or it is a file, or a link to a disk that is not mounted.
                if not self._posix.is_directory(directory):
                    raise NotADirectoryError(errno.ENOTDIR, "not a directory, or a link that leads nowhere", directory) from None
        try:
            self._posix.sync_directory(parent)
        except OSError as error:
            # A run root that was made for us below a directory which we may not read is its maker's to keep.
            if made or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        self._durable.add(directory)

    def refuse_links(self, directory: str) -> None:
        """Raise `StoreError` (kind ``link``) if a directory inside the root is a link: the root ends there.

        The root itself may be one. Whoever can write to it could else have any directory of ours filled and swept.
        """
        while len(directory) > len(self._root):
            with failures_of("look at", directory):
                if self._posix.is_link(directory):
                    raise OSError(errno.ELOOP, "a directory of the run root is a link", directory)
            directory = os.path.dirname(directory)
