"""The best block mapping on a rectangle under a memory limit, proven."""
