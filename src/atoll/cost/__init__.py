"""Cost of one operator on one chip: seconds, bytes and joules."""
