"""Costs of a run's layers and operators on its devices."""
