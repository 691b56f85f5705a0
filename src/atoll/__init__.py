"""Atoll: the accelerator, the schedule and the training layout, found together and proven."""

__version__ = "0.1.0"
