"""Training runs on devices that exist: what a layout costs, and which layout is best."""
