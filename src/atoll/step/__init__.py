"""Rules of one training step that chip search, device planning and wafer mapping share."""
