"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests; see tests/browser.py."""
    from browser import start_browser

    with start_browser() as started:
        yield started
