"""What no mapping of the encoding beats."""
