"""Runs on pods of different devices, or of the same ones behind a slow link."""
