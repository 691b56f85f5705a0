"""Families of models: what their configurations say, read into one form."""

from atoll.workload.families.builtin import family_table
from atoll.workload.families.family import FAMILIES, Family

__all__ = ["FAMILIES", "Family", "family_table"]
