"""Collectives on a nested network from their terms, compiled; `nested` states the same plainly."""

from __future__ import annotations

import numpy as np

from atoll.base.jit import kernel
from atoll.fabric.nested import TREE_SHARE


@kernel
def measured_share(durations_s, shares, full_s):
    """Share of a level's bandwidth reached by a message that takes `full_s` at full bandwidth."""
    last = durations_s.shape[0] - 1
    if full_s <= durations_s[0]:
        return shares[0]
    if full_s >= durations_s[last]:
        return shares[last]
    at = 1
    while durations_s[at] < full_s:
        at += 1
    part = np.log(full_s / durations_s[at - 1]) / np.log(durations_s[at] / durations_s[at - 1])
    return shares[at - 1] + part * (shares[at] - shares[at - 1])


@kernel
def terms_s(fixed_s, tree_s, s_per_byte, steps, durations_s, shares, bytes_):
    """Seconds of a collective of `bytes_` with these terms (`nested.Terms`); one row per level."""
    slowest = 0.0
    for level in range(s_per_byte.shape[0]):
        if s_per_byte[level] > 0.0:
            full_s = s_per_byte[level] * bytes_
            share = measured_share(durations_s[level], shares[level], full_s / steps[level])
            slowest = max(slowest, full_s / share)
    return min(fixed_s + slowest, tree_s + slowest / TREE_SHARE)
