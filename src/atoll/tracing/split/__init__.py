"""Tensor parallelism for a captured layer: cuts that follow the data."""
