"""`atoll env` says what a bug report needs."""

from __future__ import annotations

from atoll.base.identity import VERSION
from atoll.commands.environment import environment


def test_versions_processor_cache_and_extras_are_named() -> None:
    shown = environment()
    assert shown["atoll"].startswith(VERSION)
    assert {"python", "system", "processor", "kernel cache", "numpy", "torch"} <= shown.keys()
    assert shown["numpy"][0].isdigit()
