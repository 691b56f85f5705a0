"""A module run on fake tensors, written down as plain data: calls, work, segments."""
