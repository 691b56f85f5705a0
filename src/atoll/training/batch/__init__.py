"""Estimates of many layouts at once, in arrays."""
