"""How many examples Hypothesis draws where each takes long: few, and many in a campaign."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(few: int, many: int) -> settings:
    """`many` under HYPOTHESIS_PROFILE=campaign, as .ci/full sets it, and `few` otherwise."""
    campaign = os.environ.get("HYPOTHESIS_PROFILE") == "campaign"
    return settings(max_examples=many if campaign else few, deadline=None)
