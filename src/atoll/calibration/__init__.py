"""Fits of the GPU operator model and of sites, and validation on measurements."""
