"""Wafer-scale chips: the template, the mapping of a training step on its mesh of dies, the search."""
