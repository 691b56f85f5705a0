"""The best layout of a run: its space, bounds, proof and reasons."""
