"""Fixtures that several folders of tests share, and how Hypothesis draws its examples.

The default profile draws the same examples in every run, so that a change fails for what it
changed. `HYPOTHESIS_PROFILE=explore` draws fresh ones: run it to look for new counterexamples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from browser import Browser

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests; see tests/browser.py."""
    from browser import start_browser

    with start_browser() as started:
        yield started
