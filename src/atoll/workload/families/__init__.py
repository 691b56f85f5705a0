"""Families of models: what their configurations say, read into one form."""

from atoll.workload.families.family import Family, families, register
from atoll.workload.families.known import family_table

__all__ = ["Family", "families", "family_table", "register"]
