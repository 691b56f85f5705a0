"""The constants of the physical model: value, range and source of each.

Areas and energies of logic are those of 7 nm; `nodes` scales them. Values marked *fitted* are what
`atoll validate --chips` found on 25 published chips from 2015 to 2025 within the range that their
sources leave; all others are taken as they stand. Ranges are for robustness: what a value could be.

Sources
  [v4i]    Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021:
           energies of operations at 7 nm (Table 2), shares of the die (MXUs 11 %, CMEM 28 %).
  [v1]     Jouppi et al., "In-Datacenter Performance Analysis of a TPU", ISCA 2017.
  [GA100]  Zhang et al., "LLMCompass", ISCA 2024: areas measured on a photograph of the A100's die.
  [FGDRAM] O'Connor et al., "Fine-Grained DRAM", MICRO 2017.
  [USC]    arXiv 2409.00287: a WSE-2 core is half SRAM, half logic.
  [Horowitz] "Computing's energy problem", ISSCC 2014.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant with its range and source."""

    name: str
    value: float
    low: float
    high: float
    source: str


def ranged(value: float, low: float, high: float, source: str) -> Any:
    return field(default=value, metadata={"low": low, "high": high, "source": source})


@dataclass(frozen=True, slots=True)
class Physics:
    """All constants; draws and fits replace field values (`dataclasses.replace`)."""

    cell_um2: float = ranged(
        600.0, 400.0, 900.0, "multiply-add in bf16 with its registers: [v4i] MXUs, at most 671"
    )
    fp8_cell: float = ranged(0.33, 0.2, 0.5, "its area over that of bf16: int8 cells of [v1]")
    fp4_cell: float = ranged(0.16, 0.1, 0.25, "halved once more; assumed")
    threaded_lane_um2: float = ranged(
        22500.0, 12000.0, 45000.0,
        "fitted; a lane of a multiprocessor with registers, schedulers and load units: [GA100]",
    )  # fmt: skip
    static_lane_um2: float = ranged(
        14000.0, 3000.0, 20000.0, "fitted; a lane of a statically scheduled vector unit"
    )
    core_um2: float = ranged(
        6770.0, 3000.0, 20000.0,
        "fitted; control and router of a core, times the root of its cells: [USC] 8,000",
    )  # fmt: skip
    scratchpad: float = ranged(
        2.28, 1.3, 2.8, "fitted; area over the macro's: [v4i] 2.6 at most, [USC] 1.8"
    )
    bank_periphery: float = ranged(
        0.1, 0.02, 0.33,
        "of the area of a bank of 1 MiB, what grows with its side; at most all that a macro has "
        "beside its cells (31.8 Mb/mm2 of 0.021 um2, WikiChip); banks of 6 KB of [USC] say little",
    )  # fmt: skip
    second_port: float = ranged(
        2.0, 1.5, 2.4,
        "area of a bank with two ports over one: dual-port SRAM of 8T cells has half the density "
        "(Memoir Systems, 2012); single-port banks and a third of their XOR 1.5",
    )  # fmt: skip
    cache: float = ranged(7.0, 5.0, 8.0, "coherent, with tags and control: L2 of [GA100] 7.3")
    shared_wiring: float = ranged(
        0.25, 0.05, 0.4, "network on chip and gaps over the parts it joins: [GA100] 0.13 and others"
    )
    uncore_mm2: float = ranged(
        121.0, 30.0, 150.0, "fitted; host interface, pads, clocks, test, management: [GA100] 40"
    )
    further_die: float = ranged(0.6, 0.4, 1.0, "uncore of each further die of a package; assumed")
    serdes_mm2_per_GBps: float = ranged(
        0.05, 0.02, 0.1, "each way: NVLink 3 of [GA100] 0.07, NVLink 4 0.04, LLMCompass"
    )
    serdes_GBps_per_mm: float = ranged(
        31.0, 18.0, 62.0, "each way, of the die's edge: NVLink 3 to 224 Gb/s lanes; assumed"
    )
    on_wafer_link: float = ranged(
        0.2, 0.1, 0.4, "area and energy of a link to the next die on a wafer over a SerDes"
    )
    dram_channel_mm2: float = ranged(4.0, 2.9, 6.0, "64 bits of DDR, LPDDR or GDDR: LLMCompass")
    mac_pJ: float = ranged(
        0.87,
        0.4,
        1.2,
        "fitted; a multiply-add in bf16, at full rate: [v4i] 0.59 without wires; Gaudi 3's best "
        "product at 900 W leaves its cells 1.2 at 7 nm with random data, H200's 1.05, A100's 0.6",
    )
    fp8_mac: float = ranged(0.25, 0.17, 0.75, "its energy over that of bf16: [v4i] int8 0.17")
    operand_pJ_per_byte: float = ranged(
        1.17, 0.8, 2.0, "fitted; to and from a unit's registers or buffer: [v4i] 8 KB 0.94"
    )
    threaded_lane_pJ: float = ranged(
        3.0, 1.0, 15.0, "a clock of a lane beside a matrix unit: issue, addresses; assumed"
    )
    static_lane_pJ: float = ranged(6.0, 1.0, 15.0, "a clock of a vector lane; assumed")
    sustained: float = ranged(
        1.4, 1.05, 1.7,
        "energy of products with random data over what ratings leave for them: what A100, H200, "
        "MI300X, MI325X and Gaudi 3 sustain of their peaks at their ratings",
    )  # fmt: skip
    static_W_per_mm2: float = ranged(
        0.075, 0.03, 0.15, "fitted; leakage and clocks: TPU v4 idle 90 W on less than 600 mm2"
    )
    hbm_stack_W: float = ranged(
        30.0, 5.0, 30.0, "fitted; a stack's rating without its traffic, with PHY and regulators"
    )
    dram_pJ_per_bit: float = ranged(
        6.0, 3.5, 9.0, "HBM2 with controller and wires; the stack alone 3.9 [FGDRAM]"
    )
    other_dram: float = ranged(1.5, 1.0, 3.0, "energy of other DRAM over HBM2: [v4i] GDDR6")
    dram_share: float = ranged(0.4, 0.2, 0.7, "of DRAM's bandwidth in use when units are at peak")
    buffer_share: float = ranged(
        0.125, 0.05, 0.4, "of a shared buffer's bandwidth in use at peak: tiles of 256 on arrays"
    )
    bank_energy: float = ranged(
        0.15, 0.1, 0.5,
        "power of a bank's area that a byte's energy grows with: [v4i] 8.5 pJ of 32 KB and 14 of "
        "1 MB at 7 nm, [Horowitz] 20 and 100 at 45 nm",
    )  # fmt: skip
    link_pJ_per_bit: float = ranged(6.0, 4.0, 10.0, "SerDes, one end: 5.6 (112G PAM4, VLSI 2022)")
    link_share: float = ranged(0.5, 0.2, 1.0, "of links' bandwidth in use when units are at peak")
    module_W_2016: float = ranged(
        300.0, 250.0, 400.0, "what a module could be cooled at: P100 300 W, H100 700, MI325X 1,000"
    )
    module_growth: float = ranged(0.15, 0.12, 0.18, "of it in a year (logarithm), same ratings")
    wire_pJ_per_bit_mm: float = ranged(
        0.12, 0.04, 0.24, "on-chip wires: Keckler et al., IEEE Micro 2011, random data"
    )
    wire_mm: float = ranged(10.0, 5.0, 15.0, "of it from a shared buffer to a core: half a die")
    wire_mm2_per_Bpc_mm: float = ranged(
        5.2e-4, 2.5e-4, 1e-3, "of a crossbar: [GA100] 76 mm2 for 5,120 bytes a clock over 28.7 mm"
    )
    threshold: float = ranged(
        0.4, 0.25, 0.55,
        "of the nominal voltage, below which no clock runs (V = t + (1 - t) f): 0.54 of a 5 nm "
        "accelerator (NVIDIA, VLSI 2022: 152 MHz at 0.46 V, 1,760 at 1.05), 0.39 of Simba (MICRO "
        "2019, 16 nm: 0.48 GHz at 0.52 V, 1.8 at 1.1), 0.36 and 0.24 of TSMC's N5 processors (IEDM "
        "2019), 0.29 of IBM's 7 nm chip (ISSCC 2021)",
    )  # fmt: skip
    least_voltage: float = ranged(
        0.87, 0.7, 1.0, "of the nominal one: parts of data centres run at 0.65 V and more of 0.75"
    )
    nominal_Hz: float = ranged(
        2.0e9, 1.05e9, 2.2e9,
        "clock at the nominal voltage at 7 nm: IBM's chip has 1.6 GHz at 0.75 V (ISSCC 2021), D1 "
        "is sold at 2.0 GHz, A100 at 1.41, TPU v4 at 1.05",
    )  # fmt: skip
    sram_pJ_per_byte: float = ranged(
        1.75, 0.9, 2.6, "a byte out of a bank of 1 MB at 7 nm: [v4i] 14 pJ for 64 bits"
    )
    defects_alpha: float = ranged(10.0, 3.0, 10.0, "clustering: Feng and Ma, DAC 2022")


FITTED_AREA = ("threaded_lane_um2", "static_lane_um2", "core_um2", "scratchpad", "uncore_mm2")
FITTED_POWER = ("mac_pJ", "operand_pJ_per_byte", "static_W_per_mm2", "hbm_stack_W")
PUBLISHED = Physics()


def constants(record: DataclassInstance = PUBLISHED) -> Iterator[Constant]:
    """Yield every constant of a record with its range and source."""
    for entry in fields(record):
        metadata = entry.metadata
        value = float(getattr(record, entry.name))
        yield Constant(entry.name, value, metadata["low"], metadata["high"], metadata["source"])
