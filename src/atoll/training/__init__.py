"""Training runs on existing hardware: what a layout costs, and which layout is best."""

from atoll.training.planner import answer as answer  # registers how answers are made
