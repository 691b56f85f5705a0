"""Names of torch's operators (its ATen library), by what they do: `aten_names.yaml`."""

from __future__ import annotations

from atoll.files.yamlfile import shipped_table

_READ = shipped_table("atoll.tracing.record", "aten_names.yaml")
ELEMENTWISE: dict[str, str] = {
    name: function for function, names in _READ["elementwise"].items() for name in names.split()
}
"""The vector function of each."""
COPIES, FILLS, ZEROS, SUMS, LOSSES, GATHERS, SCATTERS, ADDING_SCATTERS, MOVES = (
    frozenset(_READ[kind].split())
    for kind in (
        "copies", "fills", "zeros", "sums", "losses", "gathers", "scatters", "adding_scatters",
        "moves",
    )
)  # fmt: skip
