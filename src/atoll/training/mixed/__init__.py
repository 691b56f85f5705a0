"""Runs on pods of different devices, or of equal devices joined by a slow link."""
