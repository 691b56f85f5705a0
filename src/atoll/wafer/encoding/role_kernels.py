"""What a digit does to a tensor, as numbers: kernels know them, so that an edit compiles anew."""

from __future__ import annotations

WHOLE, BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL, SUMMED = range(7)
