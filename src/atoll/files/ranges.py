"""Ranges of the fields of hardware files: some hundred times what any product has, or less."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atoll.base import units
from atoll.files import yamlfile
from atoll.files.yamlfile import Area, Bandwidth, Bytes, Count, Power, within

PeakFlops = Annotated[yamlfile.Flops, within(units.FLOPS, 1e9, 1e18)]
MemoryBytes = Annotated[Bytes, within(units.BYTES, 2**20, 2**47)]
BufferBytes = Annotated[Bytes, within(units.BYTES, 2**7, 2**40)]
DeviceBandwidth = Annotated[Bandwidth, within(units.BANDWIDTH, 1e6, 1e15)]
ClockHz = Annotated[yamlfile.Frequency, within(units.FREQUENCY, 1e6, 1e11)]
LatencySeconds = Annotated[yamlfile.Seconds, within(units.TIME, 1e-9, 1.0)]
ChipPower = Annotated[Power, within(units.POWER, 0.1, 1e5)]
WaferPower = Annotated[Power, within(units.POWER, 0.1, 1e7)]
ChipArea = Annotated[Area, within(units.AREA, 0.01, 1e5)]
WaferArea = Annotated[Area, within(units.AREA, 1.0, 1e7)]
LinkEnergy = Annotated[yamlfile.EnergyPerBit, within(units.ENERGY_PER_BIT, 1e-16, 1e-9)]
MOST_CORES = 10**6
CoreCount = Annotated[Count, Field(le=MOST_CORES)]
DieCount = Annotated[Count, Field(le=10_000)]
ProcessNm = Annotated[float, Field(ge=0.5, le=1e4)]
