"""Atoll: the accelerator, the schedule and the training layout, found together and proven."""

from atoll.kernel_cache import use_kernel_cache

use_kernel_cache()

__version__ = "0.1.0"
