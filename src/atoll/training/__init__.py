"""Training runs on devices that exist: what a layout costs in time and memory, and which is best."""
