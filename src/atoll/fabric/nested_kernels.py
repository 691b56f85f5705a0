"""Collectives on a nested network from their terms, compiled; `nested` states the same plainly."""

from __future__ import annotations

import numpy as np

from atoll.jit import kernel


@kernel
def measured_share(sizes, shares, bytes_):
    """Of a level's bandwidth that a message reaches (`Level.share`)."""
    last = sizes.shape[0] - 1
    if bytes_ <= sizes[0]:
        return shares[0]
    if bytes_ >= sizes[last]:
        return shares[last]
    at = 1
    while sizes[at] < bytes_:
        at += 1
    part = np.log(bytes_ / sizes[at - 1]) / np.log(sizes[at] / sizes[at - 1])
    return shares[at - 1] + part * (shares[at] - shares[at - 1])


@kernel
def terms_s(fixed_s, s_per_byte, sizes, shares, bytes_):
    """Seconds of a collective of `bytes_` with these terms (`nested.Terms`), a row a level."""
    slowest = 0.0
    for level in range(s_per_byte.shape[0]):
        if s_per_byte[level] > 0.0:
            share = measured_share(sizes[level], shares[level], bytes_)
            slowest = max(slowest, s_per_byte[level] * bytes_ / share)
    return fixed_s + slowest
