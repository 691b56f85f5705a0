"""Branch and bound over chips and layouts, objectives, baselines and certificates."""
