"""The templates by name, and ours: tensor cores, vector cores and one shared buffer.

PHAZE's kind of chip (ICML 2024); its lists are those of PHAZE's space.
"""

from __future__ import annotations

from atoll.base.registry import Registry
from atoll.hardware.accelerator import GIB
from atoll.hardware.area import columns_area_mm2, columns_area_parts
from atoll.hardware.energy import die_power_W
from atoll.hardware.silicon.physical import PHYSICAL, buffer_parameter, clock_parameter
from atoll.hardware.template.parameter import Parameter
from atoll.hardware.template.template import ChipTemplate

# Reference clock of PHAZE and of TPU v4 (Jouppi et al., ISCA 2023, Table 4: 1050 MHz).
CLOCK_HZ = 1.05e9
_COUNTS = tuple(2**k for k in range(13))
_SIDES = tuple(2**k for k in range(1, 9))

SYSTOLIC = ChipTemplate(
    name="systolic",
    about="Systolic tensor cores, vector cores and one shared buffer.",
    parameters=(
        Parameter("tensor_cores", "Tensor cores", _COUNTS),
        Parameter("vector_cores", "Vector cores", _COUNTS),
        Parameter("width", "Array width", _SIDES),
        Parameter("depth", "Array depth", _SIDES),
        Parameter("vector_width", "Vector width", _SIDES, unit="lanes", tied="width"),
        buffer_parameter("Shared buffer", *(2**k for k in range(1, 8))),
        clock_parameter(CLOCK_HZ),
    ),
    area_mm2=columns_area_mm2,
    area_parts=columns_area_parts,
    power_W=die_power_W,
)

HBM_PARAMETERS = (
    Parameter("hbm_capacity_bytes", "HBM", (), kind="bytes", unit="GiB", per=GIB),
    Parameter("hbm_bandwidth_Bps", "HBM bandwidth", (), kind="bandwidth", unit="GB/s", per=1e9),
)
"""Parameters that every chip has in addition to those of its template."""

TEMPLATES = Registry("chip_templates", ChipTemplate, (SYSTOLIC, *PHYSICAL))
