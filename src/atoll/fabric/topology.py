"""Networks built from the links of the devices: switched domains, tori, fat trees.

Named by topology and the one-way bandwidth of all links of a device: `switch-64@450GB/s`,
`torus@300GB/s`, `fat-tree@100GB/s`. Other properties follow measured networks: DGX A100 for domains
and fat trees, TPU v4 for tori. Messages of equal duration reach the same share of the bandwidth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count

from atoll.base.errors import AtollError
from atoll.base.units import BANDWIDTH, format_quantity, parse_quantity
from atoll.fabric.network import FabricLevel, Network

SWITCHED, TORUS = "dgx-a100", "tpu-v4"
"""Catalogue networks whose measured properties are used."""
RADIX = 64
"""Ports per switch: 51.2 Tb/s / 800 Gb/s."""
MOST_DOMAIN = LARGEST_TORUS = 4096
_AXES = 3
_FORM = re.compile(r"(torus|fat-tree|switch-([1-9][0-9]{0,3}))")


@dataclass(frozen=True, slots=True)
class Topology:
    """How devices are joined by their links."""

    name: str
    domain: int = 0
    """Devices per switched domain; another network joins domains. 0: all devices in one."""

    @property
    def switched(self) -> bool:
        return self.name != "torus"

    def named(self, link_Bps: float) -> str:
        """Name the network with links of `link_Bps`."""
        return f"{self.name}@{format_quantity(link_Bps, BANDWIDTH, 12)}".replace(" ", "")

    def layers(self, devices: int) -> int:
        """Layers of switches between the most distant of `devices`."""
        reached = min(devices, self.domain or devices)
        return next(n for n in count(1) if 2 * (RADIX // 2) ** n >= reached)

    def joins_all(self, devices: int) -> bool:
        """Return whether the links alone join `devices`."""
        return devices <= (self.domain or (devices if self.switched else LARGEST_TORUS))

    def network(self, link_Bps: float, template: Network) -> Network:
        """Build the network from links of `link_Bps`, with other properties of `template`."""
        inner, *outer = template.levels
        name = self.named(link_Bps)
        if not self.switched:
            slices = _faster(inner, link_Bps / _AXES, "torus")
            return Network(name, (slices, *outer))
        if not self.domain:
            return Network(name, (_faster(outer[-1], link_Bps, "fat tree"),))
        domain = replace(_faster(inner, link_Bps, "switch"), devices=self.domain)
        most = outer[-1].devices // self.domain * self.domain
        return Network(name, (domain, replace(outer[-1], devices=most)))


def parse_topology(name: str) -> Topology:
    """Parse a topology name."""
    form = _FORM.fullmatch(name)
    if form is None or int(form[2] or 2) < 2 or int(form[2] or 2) > MOST_DOMAIN:
        raise AtollError(
            f"topology {name!r} is not known; take torus, fat-tree, or switch- and the devices of "
            f"a domain (2 to {MOST_DOMAIN:,}), such as switch-64."
        )
    return Topology(name, int(form[2] or 0))


def parse_linked_network(name: str) -> tuple[Topology, float] | None:
    """Parse "topology@bandwidth"; None for any other network name."""
    form, at, bandwidth = name.partition("@")
    if not at:
        return None
    link_Bps = parse_bandwidth(bandwidth, f"network {name!r}: links")
    return parse_topology(form), link_Bps


def parse_bandwidth(text: str, what: str) -> float:
    """Parse a bandwidth above 0; `what` begins the sentence of a refusal."""
    try:
        value_Bps = parse_quantity(text, BANDWIDTH)
    except ValueError as error:
        raise AtollError(f"{what}: {error}") from None
    if value_Bps <= 0.0:
        raise AtollError(f"{what}: expected more than nothing.")
    return value_Bps


def _faster(level: FabricLevel, bandwidth_Bps: float, name: str) -> FabricLevel:
    factor = bandwidth_Bps / level.bandwidth_Bps
    curve = tuple((size * factor, share) for size, share in level.efficiency)
    return replace(level, name=name, bandwidth_Bps=bandwidth_Bps, efficiency=curve)
