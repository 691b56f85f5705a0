"""Chips, networks and spaces of chips, with their area, energy and power."""

from atoll.fabric.network import Level, Network
from atoll.hardware.accelerator import GIB, KIB, MIB, Accelerator, Hbm
from atoll.hardware.area import area_mm2
from atoll.hardware.catalog import (
    accelerator_names,
    load_accelerator,
    load_network,
    network_names,
)
from atoll.hardware.energy import DEFAULT_ENERGY
from atoll.hardware.product import ProductSpace
from atoll.hardware.silicon.chip import accelerator_area_mm2, area_parts, peak_power_W
from atoll.hardware.space import Axes, GlbBandwidth, Limits, Space, build_space, phaze_space
from atoll.hardware.spacefile import load_space, read_space, template_space
from atoll.hardware.template.template import EnergyModel

__all__ = [
    "DEFAULT_ENERGY",
    "GIB",
    "KIB",
    "MIB",
    "Accelerator",
    "Axes",
    "EnergyModel",
    "GlbBandwidth",
    "Hbm",
    "Level",
    "Limits",
    "Network",
    "ProductSpace",
    "Space",
    "accelerator_area_mm2",
    "accelerator_names",
    "area_mm2",
    "area_parts",
    "build_space",
    "load_accelerator",
    "load_network",
    "load_space",
    "network_names",
    "peak_power_W",
    "phaze_space",
    "read_space",
    "template_space",
]
