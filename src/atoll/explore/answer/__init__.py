"""The answer of a search of chips, and why it is the answer."""
