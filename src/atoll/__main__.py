"""`python -m atoll` is the `atoll` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `atoll` command: Ctrl-C is one line also while it is being loaded."""
    try:
        from atoll.cli import main as run
    except KeyboardInterrupt:
        print("atoll: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
