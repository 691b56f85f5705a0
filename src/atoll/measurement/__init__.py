"""Ranks of layouts run by the real software on the local device, with fake process groups."""
