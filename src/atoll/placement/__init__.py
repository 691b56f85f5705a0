"""Layers to stages to devices: pipeline, tensor and data parallelism, memory, recomputation."""
