"""Roles of a digit for a tensor, as constants of kernels (an edit recompiles them)."""

from __future__ import annotations

REPLICATED = 0
BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL, SUMMED = range(1, 7)
