"""Bytes per parameter of weights, gradients and optimizer state, by name; the one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.files.yamlfile import suggestion

N = TypeVar("N", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class States:
    """Bytes per parameter of everything that is kept for it."""

    name: str
    weight: float
    gradient: float
    optimizer: float
    """Master weight and moments: what ZeRO 1 divides."""
    reduced: float
    """Bytes per parameter in which gradients are summed over data-parallel ranks."""
    update: float
    """Bytes per parameter that the optimizer's step moves."""

    @property
    def held(self) -> float:
        """All that a device keeps of a parameter that is not divided."""
        return self.weight + self.gradient + self.optimizer

    def parts(self, whole: N, divided: N, zero: int) -> tuple[N, N, N]:
        """Bytes of weights, gradients and optimizer state on one rank that holds so many
        parameters, or so many of them where all ranks that share them divide them: from ZeRO 1 on
        the optimizer's, from 2 on gradients, from 3 on weights (Rajbhandari et al., SC 2020).
        """
        return (
            self.weight * (divided if zero >= 3 else whole),
            self.gradient * (divided if zero >= 2 else whole),
            self.optimizer * (divided if zero >= 1 else whole),
        )


# Adam, but for the last. Moved by a step: gradient, master, both moments read; master, moments,
# weight written.
STATES = {
    s.name: s
    for s in (
        States("mixed", weight=2, gradient=4, optimizer=12, reduced=4, update=30),
        # Rajbhandari et al., ZeRO, SC 2020: 16 bytes.
        States("mixed16", weight=2, gradient=2, optimizer=12, reduced=2, update=28),
        # DeepSpeed's bf16 optimizer keeps 16-bit gradients beside their fp32 sums.
        States("mixed-both", weight=2, gradient=6, optimizer=12, reduced=4, update=30),
        # DeepSeek-V3's (arXiv:2412.19437, section 3.3.2): 16-bit moments beside an fp32 master.
        States("moments16", weight=2, gradient=4, optimizer=8, reduced=4, update=22),
        States("bf16", weight=2, gradient=2, optimizer=4, reduced=2, update=14),
        States("fp32", weight=4, gradient=4, optimizer=8, reduced=4, update=28),
        States("sgd", weight=2, gradient=2, optimizer=0, reduced=2, update=6),
    )
}
ALIASES = {"adam": "mixed16"}
"""Names of earlier versions."""


def load_states(name: str) -> States:
    found = ALIASES.get(name, name)
    if found not in STATES:
        raise AtollError(f"states {name!r} are not known{suggestion(name, STATES)}")
    return STATES[found]
