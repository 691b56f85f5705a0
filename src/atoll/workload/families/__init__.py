"""Families of models: what their configurations say, read into one form."""

from atoll.workload.families.builtin import GROUPS
from atoll.workload.families.family import FAMILIES, Family

__all__ = ["FAMILIES", "GROUPS", "Family"]
