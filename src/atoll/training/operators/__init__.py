"""Layers and operators of a run on given devices, priced."""
