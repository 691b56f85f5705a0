"""Fits of the GPU operator model on measured operators, and its errors on others."""

from atoll.calibrate.fit import calibrate, fit_calibration
from atoll.calibrate.rows import OperatorRow, fitted_rows, read_operators
from atoll.calibrate.validate import predict_s, validate_operators

__all__ = [
    "OperatorRow",
    "calibrate",
    "fit_calibration",
    "fitted_rows",
    "predict_s",
    "read_operators",
    "validate_operators",
]
