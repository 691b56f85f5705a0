"""Drawings of an answer: one HTML file (`page`), and traces for Perfetto (`trace`)."""
