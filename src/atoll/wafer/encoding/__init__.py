"""A block's operators, and a whole mapping as genes."""
