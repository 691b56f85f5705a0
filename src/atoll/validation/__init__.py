"""Measured runs and steps, and predictions held against them."""
