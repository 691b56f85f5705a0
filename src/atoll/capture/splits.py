"""placeholder"""
from __future__ import annotations
class Splits:
    def of_value(self, *a): return None
    def reduced(self, *a): return []
    def of_product(self, *a): return ""
    def of_rows(self, *a): return None
    def of_pass(self, *a): return ""
def find_splits(*a): return Splits()
