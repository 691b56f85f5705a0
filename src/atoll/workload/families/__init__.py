"""Families of models: what their configurations say, read into one form."""

from atoll.workload.families.family import FAMILIES, Family
from atoll.workload.families.known import family_table

__all__ = ["FAMILIES", "Family", "family_table"]
