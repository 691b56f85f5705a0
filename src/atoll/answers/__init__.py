"""What commands answer, as typed data: written, read and checked by its types (`answer`).

All of them can be imported from here; `kinds` lists them by command.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.answers.kinds import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The types are imported when one is asked for: `atoll --help` needs none."""
    kinds = import_module("atoll.answers.kinds")
    if name not in ("__all__", *kinds.__all__):
        raise AttributeError(f"module 'atoll.answers' has no attribute {name!r}")
    return getattr(kinds, name)
