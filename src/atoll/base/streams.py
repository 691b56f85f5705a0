"""Standard output and error: closed, full, or of an encoding that lacks a character."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)


def prepare_streams() -> None:
    """Open closed descriptors on the null device, and escape what the encoding cannot write.

    The next file that is opened would else take the number of a closed descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(sentence: str) -> None:
    """Print a sentence to standard error, if that can be written."""
    with suppress(OSError):
        print(f"atoll: {sentence}", file=sys.stderr, flush=True)


def cannot_write(error: OSError) -> bool:
    """Return whether an error is that of writing to a stream; those of files name their file."""
    return error.filename is None and error.errno in UNWRITABLE


def close_streams() -> OSError | None:
    """Flush standard output and error, and return the error of one that cannot be written.

    Both go to the null device then, so that Python's last flush succeeds.
    """
    errors = []
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            errors.append(error)
            with suppress(OSError):
                os.dup2(null, stream.fileno())
    os.close(null)
    return errors[0] if errors else None
