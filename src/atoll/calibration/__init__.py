"""Fits of the GPU operator model on measured operators, and its errors on others."""
