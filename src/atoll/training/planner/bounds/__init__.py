"""Lower bounds on all layouts of a family, before any is estimated."""
