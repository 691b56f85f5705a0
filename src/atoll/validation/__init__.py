"""Measured runs, steps and chips, compared with predictions."""
