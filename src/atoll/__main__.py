"""`python -m atoll` is the `atoll` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from atoll.base.streams import prepare_streams, say

COLLECTED_AFTER = 300_000  # new objects: a command makes few cycles


def main() -> None:
    """Entry point of the `atoll` command: Ctrl-C is one line also while it is being loaded."""
    gc.set_threshold(COLLECTED_AFTER)
    # Pydantic would search all installed packages for its plug-ins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    atexit.register(gc.freeze)  # avoids a last collection at exit
    prepare_streams()
    try:
        from atoll.cli import main as run
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    gc.freeze()  # modules are permanent
    run()


if __name__ == "__main__":
    main()
