"""Atoll beside other predictors, on the same measured runs."""
