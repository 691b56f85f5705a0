"""Comparison of Atoll with other predictors on the same measured runs."""
