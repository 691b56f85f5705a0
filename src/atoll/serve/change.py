"""What the sliders say: the conditions under which a design or a layout is estimated again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from atoll.errors import AtollError
from atoll.fabric.network import Network

GIB = 2.0**30
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
CAPACITIES_GIB = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 160, 192, 256, 288, 384, 512)
MOST_DEVICES = 2**20


@dataclass(frozen=True)
class Change:
    """None: as it was."""

    devices: int | None = None
    link: float | None = None
    """Factor on the bandwidth of every level of the network."""
    hbm_GiB: float | None = None
    hbm_GBps: float | None = None
    microbatch: int | None = None
    tensor: int | None = None


def parse_change(query: Mapping[str, Sequence[str]]) -> Change:
    """The change in a query; every value is checked, and named if it is wrong."""
    given: dict[str, Any] = {}
    for field in fields(Change):
        text = next(iter(query.get(field.name, ())), "")
        if not text:
            continue
        whole = field.name in ("devices", "microbatch", "tensor")
        try:
            value: float = int(text) if whole else float(text)
        except ValueError:
            value = -1
        if not 0 < value < 1e15 or (field.name == "devices" and value > MOST_DEVICES):
            kind = "whole number" if whole else "number"
            raise AtollError(f"{field.name}: expected a positive {kind}, got {text!r}.")
        given[field.name] = value
    return Change(**given)


def scaled(network: Network, factor: float | None) -> Network:
    """The network with every level faster by a factor."""
    if factor is None or factor == 1.0:
        return network
    levels = tuple(
        replace(level, bandwidth_Bps=level.bandwidth_Bps * factor) for level in network.levels
    )
    return replace(network, levels=levels)


def slider(name: str, label: str, unit: str, values: Sequence[float], now: float) -> dict[str, Any]:
    """One control: the values it takes, with the present one among them."""
    every = sorted({float(value) for value in values} | {float(now)})
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "values": [int(v) if v.is_integer() else v for v in every],
        "now": every.index(float(now)),
    }


def around(value: float, least: float = 0.0) -> list[float]:
    """Halves and doubles of a value, up to sixteen times."""
    found = [value * 2.0**power for power in range(-4, 5)]
    return [each for each in found if each >= least]


def link_slider(network: Network) -> dict[str, Any]:
    """All levels together; the label says what they are at 1."""
    levels = ", ".join(f"{x.name} {x.bandwidth_Bps / 1e9:g} GB/s" for x in network.levels)
    found = slider("link", "Link bandwidth", "x", FACTORS, 1.0)
    return found | {"note": f"1 x is {levels} a device"}
