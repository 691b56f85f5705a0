"""The numbers that tell chips of a kind apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

Columns = Mapping[str, NDArray[Any]]  # arrays by parameter name, one value per design


@dataclass(frozen=True, slots=True)
class Parameter:
    """A chip parameter, from which space files, store, tables, sliders and plots follow."""

    name: str
    """Column name, with its base unit."""
    label: str
    values: tuple[float, ...]
    """Default list of a space."""
    kind: Literal["count", "spares", "bytes", "frequency", "bandwidth"] = "count"
    """Spares are counts that may be zero."""
    key: str = ""
    """Key in files, if it differs from the name."""
    unit: str = ""
    """Display unit; `per` base units each."""
    per: float = 1.0
    tied: str = ""
    """The parameter whose value it takes where a space does not list it."""
    silicon: bool = False
    """Whether it changes area, power and price alone, and no rate of the machine."""
    banked: bool = False
    """Whether it makes the shared buffer faster, and changes no other rate of the machine."""
    slows: bool = False
    """Whether more of it may slow down the shared buffer, while no rate grows with it."""
    repriced: bool = False
    """Whether a chip with more of it may cost less: finer processes, smaller dies, spare cores."""
    optional: bool = False
    """Whether a space may leave it out, and has `values` then."""

    def shown(self, value: float) -> str:
        digits = 4 if self.kind == "frequency" else 6
        return f"{value / self.per:.{digits}g} {self.unit}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that web pages show."""
        shown = {"name": self.name, "label": self.label, "unit": self.unit, "per": self.per}
        return shown | {"whole": self.kind in ("count", "spares", "bytes")}
