"""What the job costs on a chip: variants, layouts, bounds, evaluation."""
