"""What one operator costs on one chip: seconds, bytes and joules."""
