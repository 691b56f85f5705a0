"""Training runs on existing hardware: what a layout costs, and which layout is best."""
