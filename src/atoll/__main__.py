"""`python -m atoll` is the `atoll` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys

COLLECTED_AFTER = 300_000  # new objects: a command makes graphs and layouts that stay, few cycles


def main() -> None:
    """Entry point of the `atoll` command: Ctrl-C is one line also while it is being loaded."""
    gc.set_threshold(COLLECTED_AFTER)
    # Pydantic would look through all installed packages for plug-ins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    atexit.register(gc.freeze)  # else all that is still there is looked through once more
    try:
        from atoll.cli import main as run
    except KeyboardInterrupt:
        print("atoll: interrupted", file=sys.stderr)
        sys.exit(130)
    gc.freeze()  # modules stay
    run()


if __name__ == "__main__":
    main()
