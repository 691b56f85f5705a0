"""Chips, networks and spaces of chips, with their area, energy and power."""
