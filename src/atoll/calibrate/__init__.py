"""Fits of the GPU operator model on measured operators, and its errors on others."""

from atoll.calibrate.fit import calibrate
from atoll.calibrate.rows import fitted_rows, read_operators
from atoll.calibrate.validate import validate_operators

__all__ = [
    "calibrate",
    "fitted_rows",
    "read_operators",
    "validate_operators",
]
