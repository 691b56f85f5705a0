"""Wafer-scale chips: the template, mappings of a training step on its mesh of dies, the search."""
