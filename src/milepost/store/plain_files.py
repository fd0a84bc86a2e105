"""Open what may have been planted in a run root: plain files only, through no link, and without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat


def open_regular(path: str) -> int:
    """Open a regular file for reading; FileNotFoundError for anything else. A FIFO would be waited for, perhaps for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        # A link, a socket. But a dying disk may say the same of a file, and that is not gone.
        if error.errno in (errno.ELOOP, errno.ENXIO) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "not a regular file", path)


def open_ours(path: str, flags: int) -> int:
    """Open a file that is changed where it lies. Not through a link, nor what would block, nor a file that is another's, too.

    Whoever may write to a run root could else have the lock file be a second name of any file of ours, to be emptied.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    try:
        status = os.fstat(descriptor)
        foreign = status.st_nlink > 1 and os.pread(descriptor, 1, 0) not in (b"", b"{")
        if foreign or not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ELOOP, "not a file of milepost's", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
