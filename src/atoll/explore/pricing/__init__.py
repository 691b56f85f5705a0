"""Cost of a job on a chip: variants, layouts, bounds, evaluation."""
