"""The driver of every search: chips, layouts on existing hardware, mappings on wafers."""

from atoll.driver.problem import CertifiedAnswer, Desk, Means, PreparedProblem, Progress, drive

__all__ = ["CertifiedAnswer", "Desk", "Means", "PreparedProblem", "Progress", "drive"]
