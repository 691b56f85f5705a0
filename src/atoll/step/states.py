"""Bytes per parameter of weights, gradients and optimizer states, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from atoll.base.arrays import Floats
from atoll.base.errors import AtollError
from atoll.files.yamlfile import suggestion

N = TypeVar("N", float, Floats)


@dataclass(frozen=True, slots=True)
class States:
    """Bytes per parameter of weights, gradients and optimizer states."""

    name: str
    weight: float
    gradient: float
    optimizer: float
    """Master weight and moments, which ZeRO 1 divides."""
    reduced: float
    """Bytes of a gradient in the reduction over data-parallel ranks."""
    update: float
    """Bytes that the optimizer's step moves."""
    on_host: bool = False
    """Optimizer states, and gradients that ZeRO divides, lie in the host's memory."""

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of all states where ZeRO divides nothing."""
        return self.weight + self.gradient + self.optimizer

    def parts(self, parameters: N, divided_parameters: N, zero: int) -> tuple[N, N, N]:
        """Return the bytes of weights, gradients and optimizer states per rank: ZeRO divides the
        optimizer states from stage 1 on, gradients from 2 on, weights from 3 on (Rajbhandari et
        al., SC 2020).
        """
        optimizer = 0.0 if self.on_host else self.optimizer
        gradient = 0.0 if self.on_host and zero >= 2 else self.gradient
        return (
            self.weight * (divided_parameters if zero >= 3 else parameters),
            gradient * (divided_parameters if zero >= 2 else parameters),
            optimizer * (divided_parameters if zero >= 1 else parameters),
        )


# All but the last are Adam, whose update reads gradient, master and both moments, and writes
# master, moments and weight.
STATES = {
    s.name: s
    for s in (
        States("mixed", weight=2, gradient=4, optimizer=12, reduced=4, update=30),
        # Rajbhandari et al., ZeRO, SC 2020: 16 bytes.
        States("mixed16", weight=2, gradient=2, optimizer=12, reduced=2, update=28),
        # DeepSpeed's bf16 optimizer keeps 16-bit gradients and their fp32 sums.
        States("mixed-both", weight=2, gradient=6, optimizer=12, reduced=4, update=30),
        # DeepSeek-V3's (arXiv:2412.19437, section 3.3.2): 16-bit moments and an fp32 master.
        States("moments16", weight=2, gradient=4, optimizer=8, reduced=4, update=22),
        States("bf16", weight=2, gradient=2, optimizer=4, reduced=2, update=14),
        States("fp32", weight=4, gradient=4, optimizer=8, reduced=4, update=28),
        # bitsandbytes' moments of 8 bits with a scale per block of 256; its kernel is not limited
        # by memory: 27.5 ms per 1e9 parameters on an H200, as 98 bytes times the device's factor of
        # optimizer steps (35.75 / 28); 10 are moved.
        States("8bit", weight=2, gradient=2, optimizer=2.1, reduced=2, update=98),
        States("sgd", weight=2, gradient=2, optimizer=0, reduced=2, update=6),
        States("momentum", weight=2, gradient=2, optimizer=2, reduced=2, update=10),
        # Moments per row and column of a weight.
        States("adafactor", weight=2, gradient=2, optimizer=0, reduced=2, update=6),
    )
}
ALIASES = {"adam": "mixed16"}
"""Names of earlier versions."""


def load_states(name: str) -> States:
    states_name = ALIASES.get(name, name)
    if states_name not in STATES:
        raise AtollError(f"states {name!r} are not known{suggestion(name, STATES)}")
    return STATES[states_name]
