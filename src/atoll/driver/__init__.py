"""One way through every search: chips, layouts on existing hardware, mappings on wafers."""

from atoll.driver.problem import Answer, Desk, Means, Problem, Progress, drive

__all__ = ["Answer", "Desk", "Means", "Problem", "Progress", "drive"]
