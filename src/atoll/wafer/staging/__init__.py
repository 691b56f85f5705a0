"""Stages on the grid: who gets which dies, who helps whom, ways around faults."""
