"""Modules without knowledge of the domain: errors, units, arrays, stopping, identity, kernels."""
