"""PHAZE (ICML 2024) as published: its placement, its bounds and its way through a space."""
