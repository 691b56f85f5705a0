"""Chips as arrays for the batched cost model, and the core configurations that they share.

An operator on k tensor cores of one size, with one buffer and one memory, costs the same on every
chip that has them. Costs are therefore tabulated once per configuration. Each chip has one index
into the configurations per option (number of cores that an operator may use).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.model import MAPPER
from atoll.hardware.accelerator import Accelerator, Hbm, core_buffer_bytes
from atoll.hardware.energy import hbm_idle_W, template_energy
from atoll.hardware.silicon.chip import chip_columns, chip_stalls, chip_template
from atoll.hardware.space import DesignSpace
from atoll.hardware.template.cores import TensorConfigs
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.stalls import NO_STALLS, Stalls
from atoll.hardware.template.template import ChipTemplate
from atoll.profile import Profile

FIRST_OPTION = 0  # option that uses all cores of a chip
FIRST_LEVEL = 8  # first column of a tensor configuration that describes additional buffers


@dataclass(frozen=True, eq=False)
class VectorConfigs:
    """Distinct (vector cores, lanes) combinations."""

    cores: Ints
    lanes: Ints

    def __len__(self) -> int:
        return len(self.cores)


@dataclass(frozen=True, eq=False)
class Chips:
    """Arrays with one entry per chip. The option axis has the core counts that an operator may
    use, -1 where a chip has fewer options."""

    design: Ints
    """Index of the design in the space."""
    memory: Ints
    """Index into the space's `memories`."""
    tensor_cores: Ints
    vector_cores: Ints
    hbm_Bps: Floats
    glb_Bps: Floats
    clock_Hz: Floats
    level_Bps: Floats  # (chips, additional buffers between the shared one and HBM)
    hbm_capacity_bytes: Ints
    """Largest capacity that the space allows with this bandwidth."""
    area_mm2: Floats
    hbm_energy: Floats
    """Energy per HBM byte relative to the energy model."""
    hbm_idle_W: Floats
    """Power of the HBM without traffic."""
    glb_energy: Floats
    """Energy per byte of the shared buffer relative to the energy model."""
    process_nm: Floats
    """Process node if it is a parameter of the template, else zeros."""
    peak_flops: Floats
    tensor_count: Ints  # (chips, options): number of tensor cores
    tensor_config: Ints  # (chips, options): index into `tensor_configs`
    pair_count: Ints  # (chips, options): vector cores of a fused operator
    pair_config: Ints  # (chips, options): index into `vector_configs`
    vector_count: Ints  # (chips, options)
    vector_config: Ints  # (chips, options): index into `vector_configs`
    tensor_configs: TensorConfigs
    vector_configs: VectorConfigs
    template: ChipTemplate
    stalls: Stalls

    @property
    def stream_Bps(self) -> Floats:
        """Return the HBM bandwidth that streams reach, shape (chips,)."""
        return self.hbm_Bps * self.stalls.hbm

    def __len__(self) -> int:
        return len(self.design)

    def subset(self, indices: Ints) -> Chips:
        """Return the chips at these indices, with only the configurations that they use."""
        tensor_used, tensor_config = _renumber(self.tensor_config[indices])
        stacked = np.stack([self.pair_config[indices], self.vector_config[indices]])
        vector_used, vector_config = _renumber(stacked)
        kept = {
            f.name: getattr(self, f.name)[indices]
            for f in fields(self)
            if not f.name.endswith(("_config", "_configs", "template", "stalls"))
        }
        return replace(
            self,
            **kept,
            tensor_config=tensor_config,
            pair_config=vector_config[0],
            vector_config=vector_config[1],
            tensor_configs=pick(self.tensor_configs, tensor_used),
            vector_configs=pick(self.vector_configs, vector_used),
        )


def join_chips(first: Chips, second: Chips) -> Chips:
    """Concatenate chips; shared configurations are stored once."""
    options = max(first.tensor_count.shape[1], second.tensor_count.shape[1])

    def wide(array: Ints) -> Ints:
        missing = options - array.shape[1]
        return np.pad(array, ((0, 0), (0, missing)), constant_values=-1)

    tensor_configs, tensor_number = _joined(first.tensor_configs, second.tensor_configs)
    vector_configs, vector_number = _joined(first.vector_configs, second.vector_configs)
    kept: dict[str, Any] = {}
    for f in fields(first):
        if f.name.endswith(("_configs", "template", "stalls")):
            continue
        ours, theirs = getattr(first, f.name), getattr(second, f.name)
        if f.name.endswith("_config"):
            number = tensor_number if f.name == "tensor_config" else vector_number
            size = len(first.tensor_configs if f.name == "tensor_config" else first.vector_configs)
            ours = np.where(ours < 0, -1, number[ours])
            theirs = np.where(theirs < 0, -1, number[size + theirs])
        if f.name.endswith(("_config", "_count")):
            ours, theirs = wide(ours), wide(theirs)
        kept[f.name] = np.concatenate([ours, theirs])
    return replace(first, **kept, tensor_configs=tensor_configs, vector_configs=vector_configs)


C = TypeVar("C", TensorConfigs, VectorConfigs)


def _renumber(index: Ints) -> tuple[Ints, Ints]:
    """Return the configurations in use, and the array with their new indices (-1 stays)."""
    present = np.zeros(index.max(initial=-1) + 2, np.bool_)
    present[index] = True  # -1 is the last
    numbers = np.cumsum(present) - 1
    numbers[-1] = -1
    return np.flatnonzero(present[:-1]), numbers[index]


def _joined(first: C, second: C) -> tuple[C, Ints]:
    """Return the distinct configurations of both, and the new index of each old one."""
    names = [f.name for f in fields(first)]
    columns = [np.concatenate([getattr(first, n), getattr(second, n)]) for n in names]
    rows, number = distinct_rows(np.column_stack(columns).astype(np.float64))
    kept, at = {}, 0
    for name, column in zip(names, columns, strict=True):
        width = column[:1].size if len(column) else 1
        values = rows[:, at] if column.ndim == 1 else rows[:, at : at + width]
        kept[name] = np.ascontiguousarray(values).astype(column.dtype)
        at += width
    return type(first)(**kept), number


A = TypeVar("A", Ints, Floats)


def distinct_rows(rows: A) -> tuple[A, Ints]:
    """Return `np.unique(rows, axis=0, return_inverse=True)` ten times as fast: rows as integers."""
    code = np.zeros(len(rows), np.int64)
    size = 1
    for column in rows.T:
        values, number = np.unique(column, return_inverse=True)
        if size * len(values) >= 1 << 62:  # codes would overflow: renumber them without gaps
            code = np.unique(code, return_inverse=True)[1].ravel()
            size = len(rows)
        code = code * len(values) + number.ravel()
        size *= len(values)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return rows[first], inverse.ravel()


def clock_ranks(space: DesignSpace, chips: Chips, memory: Ints) -> tuple[Ints, Ints]:
    """Number the chips of a space that differ in their clock only as one family; return every
    chip's family, and the rank of its clock within it, the lowest first. `memory` tells memories
    apart."""
    names = [p.name for p in space.template.parameters if p.name != "clock_Hz"]
    columns = [*(space.columns[name][chips.design] for name in names), memory]
    _, family = distinct_rows(np.column_stack(columns).astype(np.float64))
    order = np.lexsort((chips.clock_Hz, family))
    first = np.searchsorted(family[order], family)
    rank = np.empty(len(chips), np.int64)
    rank[order] = np.arange(len(chips))
    return family, rank - first


def pick(configs: C, rows: Ints) -> C:
    return type(configs)(**{f.name: getattr(configs, f.name)[rows] for f in fields(configs)})


def memories(
    options: Sequence[Hbm], profile: Profile, each_capacity: bool = False
) -> list[tuple[Hbm, ...]]:
    """Return the HBM options grouped by bandwidth; a chip has the largest allowed capacity of a
    group. With `each_capacity`, every option is a separate group.
    """
    by_size = sorted(
        set(options), key=lambda o: (profile.hbm_Bps(o.bandwidth_Bps), o.capacity_bytes)
    )
    if each_capacity:
        return [(option,) for option in by_size]
    same = groupby(by_size, key=lambda option: profile.hbm_Bps(option.bandwidth_Bps))
    return [tuple(options_alike) for _, options_alike in same]


def chips_of_space(space: DesignSpace, profile: Profile, each_capacity: bool = False) -> Chips:
    """Return every design of a space with every allowed HBM bandwidth (see `memories`)."""
    parts: list[dict[str, Any]] = []
    for number, hbm_options in enumerate(memories(space.hbm_options, profile, each_capacity)):
        capacity = np.zeros(len(space), np.int64)
        phy_mm2, energy, idle_W = np.zeros(len(space)), np.ones(len(space)), np.zeros(len(space))
        for option in hbm_options:
            allowed = space.hbm_allowed[:, space.hbm_options.index(option)]
            larger = allowed & (option.capacity_bytes > capacity)
            capacity[larger] = option.capacity_bytes
            phy_mm2[larger] = option.area_mm2
            energy[larger] = option.energy
            idle_W[larger] = hbm_idle_W(option, template_energy(space.template))
        design = np.flatnonzero(capacity > 0)
        part = {
            "design": design,
            "memory": np.full(len(design), number, np.int64),
            "hbm_Bps": np.full(len(design), profile.hbm_Bps(hbm_options[0].bandwidth_Bps)),
            "hbm_capacity_bytes": capacity[design],
            "area_mm2": space.area_mm2[design] + phy_mm2[design],
            "hbm_energy": energy[design],
            "hbm_idle_W": idle_W[design],
        }
        parts.append(part)
    figures = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns = {name: values[figures["design"]] for name, values in space.columns.items()}
    return _chips(profile, space.template.stalls, space.template, columns, **figures)


def chips_of_accelerator(chip: Accelerator, profile: Profile, area_mm2: float = 0.0) -> Chips:
    """Return the arrays of a single chip."""
    template, hbm = chip_template(chip), chip.hbm
    figures = {
        "design": 0,
        "memory": 0,
        "hbm_Bps": profile.hbm_Bps(hbm.bandwidth_Bps),
        "hbm_capacity_bytes": hbm.capacity_bytes,
        "area_mm2": area_mm2,
        "hbm_energy": hbm.energy,
        "hbm_idle_W": hbm_idle_W(hbm, template_energy(template)),
    }
    arrays: dict[str, Any] = {name: np.array([value]) for name, value in figures.items()}
    return _chips(profile, chip_stalls(chip), template, chip_columns(chip), **arrays)


def losses(profile: Profile, template: ChipTemplate, stalls_of_template: Stalls) -> Stalls:
    """Return the stalls of chips under a profile. External cost models already include the stalls
    of matrix products, so these are zero for them.
    """
    stalls = stalls_of_template if profile.stalls else NO_STALLS
    if (profile.cost_model or template.cost_model or MAPPER) is MAPPER:
        return stalls
    return replace(stalls, fill_s=0.0, drained=0.0, exposed=0.0)


def _chips(
    profile: Profile, template_stalls: Stalls, template: ChipTemplate, columns: Columns,
    **figures: Any,
) -> Chips:  # fmt: skip
    """Return chips of these parameters; `figures` are fields that do not follow from them."""
    stalls, count = losses(profile, template, template_stalls), len(columns["clock_Hz"])

    def spreads(limit: int) -> tuple[int, ...]:
        return core_counts(limit) if profile.free_spread else (1, limit)

    tensor_cores, vector_cores = columns["tensor_cores"], columns["vector_cores"]
    clock_Hz, glb_Bpc = columns["clock_Hz"], columns["glb_bandwidth_Bpc"]
    if profile.glb_bandwidth_Bpc is not None:
        glb_Bpc = np.full(count, profile.glb_bandwidth_Bpc)
    level_bytes = level_Bpc = np.zeros((count, 0))
    if template.levels is not None:
        level_bytes, level_Bpc = template.levels.sizes(columns)
    banked = template.banked
    most = int(max(tensor_cores.max(), vector_cores.max()))
    tensor_count, pair_count, vector_count = np.full((3, count, len(spreads(most))), -1, np.int64)
    for n in np.unique(tensor_cores):
        rows = tensor_cores == n
        for o, k in enumerate(spreads(int(n))):
            tensor_count[rows, o] = k
            # A fused operator uses a proportional number of vector cores, at least one.
            pair_count[rows, o] = np.maximum(1, -(-vector_cores[rows] * k // n))
            if not profile.free_spread:
                pair_count[rows, o] = 1 if o == 0 else vector_cores[rows]
    for m in np.unique(vector_cores):
        rows = vector_cores == m
        for o, k in enumerate(spreads(int(m))):
            vector_count[rows, o] = k
    sizes = columns["width"], columns["depth"], columns["glb_bytes"]
    buffer_bytes = columns.get("core_buffer_bytes", np.zeros(count))
    numbers = *sizes, glb_Bpc, figures["hbm_Bps"], clock_Hz, buffer_bytes, level_bytes, level_Bpc
    tensor_config, tensor_configs = _tensor_configs(
        profile, stalls, tensor_count, np.column_stack(numbers), level_bytes.shape[1]
    )
    lanes, number = np.unique(columns["vector_width"], return_inverse=True)
    vector_config, cores, lane = _numbered(np.stack([pair_count, vector_count]), number)
    return Chips(
        **figures,
        tensor_cores=tensor_cores,
        vector_cores=vector_cores,
        glb_Bps=glb_Bpc * clock_Hz,
        clock_Hz=clock_Hz,
        level_Bps=level_Bpc * clock_Hz[:, None],
        glb_energy=np.ones(count) if banked is None else banked.energy(columns),
        process_nm=np.asarray(columns.get("process_nm", np.zeros(count)), np.float64),
        peak_flops=2.0 * tensor_cores * columns["width"] * columns["depth"] * clock_Hz,
        tensor_count=tensor_count,
        tensor_config=tensor_config,
        pair_count=pair_count,
        pair_config=vector_config[0],
        vector_count=vector_count,
        vector_config=vector_config[1],
        tensor_configs=tensor_configs,
        vector_configs=VectorConfigs(cores=cores, lanes=lanes[lane]),
        template=template,
        stalls=stalls,
    )


def _tensor_configs(
    profile: Profile, stalls: Stalls, count: Ints, numbers: Floats, further: int
) -> tuple[Ints, TensorConfigs]:
    """Return the configuration index of each option and the distinct configurations. Columns of
    `numbers` are width, depth, GLB bytes and bandwidth, HBM bandwidth, clock, bytes per core buffer
    (0: by the default rule), and bytes and bandwidths of the `further` buffers.
    """
    chips, number = distinct_rows(numbers)
    index, used, chip = _numbered(count, number)
    unique = np.column_stack([used, chips[chip]])
    cores, w, d, glb_bytes, glb_Bpc, hbm_Bps, clock_Hz, buffer_bytes = unique.T[:FIRST_LEVEL]
    buffers = [
        given or core_buffer_bytes(int(width), int(depth))
        for width, depth, given in zip(w, d, buffer_bytes.tolist(), strict=True)
    ]
    levels = unique[:, FIRST_LEVEL:]
    same = np.ones(len(unique))
    return index, TensorConfigs(
        cores=cores.astype(np.int64),
        width=w.astype(np.int64),
        depth=d.astype(np.int64),
        core_buffer_bytes=np.array(buffers, np.float64),
        glb_budget_bytes=glb_bytes * profile.glb_share,
        glb_Bps=glb_Bpc * clock_Hz,
        hbm_Bps=hbm_Bps * stalls.hbm,
        clock_Hz=clock_Hz * stalls.array,
        level_budget_bytes=np.asarray(levels[:, :further] * profile.glb_share, np.float64),
        level_Bps=np.asarray(levels[:, further:] * clock_Hz[:, None], np.float64),
        fill_s=stalls.fill_s * same,
        drained=stalls.drained * same,
        exposed=stalls.exposed * same,
    )


def _numbered(count: Ints, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Number the distinct pairs of a count of cores, shape (..., chips, options), and the `number`
    of its chip. Return the index of every pair (-1 where the count is -1), and the pairs.
    """
    values, place = _renumber(count)
    most = int(number.max(initial=0)) + 1
    used, index = _renumber(np.where(place < 0, -1, place * most + number[:, None]))
    place, chip = np.divmod(used, most)
    return index, values[place], chip


def core_counts(limit: int) -> tuple[int, ...]:
    """Return the core counts that an operator may use: powers of two, and all cores."""
    counts = [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]
    return tuple(counts) if counts[-1] == limit else (*counts, limit)
