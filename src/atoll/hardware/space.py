"""Spaces of chips: arrays with one entry per design, and the rules that generate them.

A space is a product of lists, one per parameter, cut down by constraints. HBM is kept apart: every
design goes with every HBM option that `hbm_allowed` permits, since neither area of the cores nor
operator times on the array depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.errors import AtollError, InfeasibleError
from atoll.hardware.accelerator import GIB, MIB, Accelerator, Hbm
from atoll.hardware.area import area_mm2
from atoll.hardware.energy import DEFAULT_ENERGY, EnergyModel, dynamic_die_power_W, hbm_power_W
from atoll.units import counted

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Reference clock of PHAZE and of TPU v4 (Jouppi et al., ISCA 2023, Table 4: 1050 MHz).
CLOCK_HZ = 1.05e9
# TPU v4's HBM bandwidth (same table: 1200 GB/s).
HBM_BANDWIDTH_BPS = 1.2e12
# NVIDIA A100 whitepaper (2020): 40 MB of L2 read at 5120 bytes per clock.
GLB_BPC_PER_MIB = 128.0

MAX_POINTS = 20_000_000
_CHUNK_POINTS = 1 << 20  # bounds the memory of the points that the constraints will remove


@dataclass(frozen=True, slots=True)
class GlbBandwidth:
    """Bytes per clock out of the shared buffer: `fixed_Bpc + per_mib_Bpc x MiB`."""

    per_mib_Bpc: float = 0.0
    fixed_Bpc: float = 0.0

    def bytes_per_clock(self, glb_bytes: ArrayLike) -> FloatArray:
        return np.asarray(self.fixed_Bpc + self.per_mib_Bpc * (np.asarray(glb_bytes) / MIB))


DEFAULT_GLB = GlbBandwidth(per_mib_Bpc=GLB_BPC_PER_MIB)


@dataclass(frozen=True, eq=False)
class Space:
    """One entry per design in every array; the arrays are read-only."""

    name: str
    tensor_cores: IntArray
    vector_cores: IntArray
    width: IntArray
    depth: IntArray
    vector_width: IntArray
    glb_bytes: IntArray
    glb_bandwidth_Bpc: FloatArray
    clock_Hz: FloatArray
    area_mm2: FloatArray  # without HBM PHYs; see area_with
    hbm_options: tuple[Hbm, ...]
    hbm_allowed: NDArray[np.bool_]  # [design, HBM option]: within the constraints together

    def __post_init__(self) -> None:
        size = len(self.tensor_cores)
        for name in ARRAYS:
            values = getattr(self, name)
            if values.shape != (size,):
                raise ValueError(f"space {self.name}: {name} has shape {values.shape}, not {size}")
            values.setflags(write=False)
        if self.hbm_allowed.shape != (size, len(self.hbm_options)):
            raise ValueError(f"space {self.name}: hbm_allowed has shape {self.hbm_allowed.shape}")
        self.hbm_allowed.setflags(write=False)

    def __len__(self) -> int:
        return len(self.tensor_cores)

    def __repr__(self) -> str:
        return (
            f"Space({self.name}: {counted(len(self), 'design')} x "
            f"{counted(len(self.hbm_options), 'HBM option')}, "
            f"{self.area_mm2.min(initial=np.inf):.2f} to "
            f"{self.area_mm2.max(initial=-np.inf):.2f} mm2)"
        )

    def area_with(self, hbm: Hbm) -> FloatArray:
        """Areas with the PHYs of one HBM option on the die."""
        return self.area_mm2 + hbm.area_mm2

    def peak_power_with(self, hbm: Hbm, energy: EnergyModel = DEFAULT_ENERGY) -> FloatArray:
        """`energy.peak_power_W` of every design with one HBM option."""
        dynamic = dynamic_die_power_W(
            self.tensor_cores,
            self.vector_cores,
            self.width,
            self.depth,
            self.vector_width,
            self.glb_bandwidth_Bpc,
            self.clock_Hz,
            energy,
        )
        static = energy.static_W_per_mm2 * self.area_with(hbm)
        return dynamic + hbm_power_W(hbm, energy) + static

    def accelerator(self, index: int, hbm: Hbm | None = None) -> Accelerator:
        """One design as a device; `hbm` defaults to the first option that it may take."""
        if hbm is None:
            hbm = self.hbm_options[int(np.argmax(self.hbm_allowed[index]))]
        return Accelerator(
            tensor_cores=int(self.tensor_cores[index]),
            vector_cores=int(self.vector_cores[index]),
            width=int(self.width[index]),
            depth=int(self.depth[index]),
            vector_width=int(self.vector_width[index]),
            glb_bytes=int(self.glb_bytes[index]),
            glb_bandwidth_Bpc=float(self.glb_bandwidth_Bpc[index]),
            clock_Hz=float(self.clock_Hz[index]),
            hbm=hbm,
            name=f"{self.name}/{index}",
        )

    def subset(self, indices: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> Space:
        """The designs at these indices (or under this mask), in that order."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        return replace(
            self,
            hbm_allowed=self.hbm_allowed[chosen],
            **{name: getattr(self, name)[chosen] for name in ARRAYS},
        )


PARAMETERS = (
    "tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes", "clock_Hz",
)  # fmt: skip
"""What tells designs apart, in the order of `Axes.lists`."""
ARRAYS = (*PARAMETERS[:-1], "glb_bandwidth_Bpc", "clock_Hz", "area_mm2")
"""Names of a space's per-design arrays, in order."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The list of values of each parameter; `vector_width` None ties it to `width`."""

    tensor_cores: tuple[int, ...]
    vector_cores: tuple[int, ...]
    width: tuple[int, ...]
    depth: tuple[int, ...]
    glb_bytes: tuple[int, ...]
    vector_width: tuple[int, ...] | None = None
    clock_Hz: tuple[float, ...] = (CLOCK_HZ,)

    def lists(self) -> tuple[tuple[float, ...], ...]:
        """In the order of the designs: the first varies slowest."""
        return (
            self.tensor_cores,
            self.vector_cores,
            self.width,
            self.depth,
            (0,) if self.vector_width is None else self.vector_width,
            self.glb_bytes,
            self.clock_Hz,
        )

    @property
    def points(self) -> int:
        return prod(len(values) for values in self.lists())


@dataclass(frozen=True, slots=True)
class Limits:
    """What a design, with its HBM, must satisfy."""

    max_area_mm2: float | None = None
    min_area_mm2: float | None = None
    single_cores_may_be_smaller: bool = False  # PHAZE spares one-core designs from min_area
    max_power_W: float | None = None
    min_peak_flops: float | None = None
    min_hbm_capacity_bytes: int | None = None
    min_hbm_bandwidth_Bps: float | None = None


def build_space(
    name: str,
    axes: Axes,
    hbm_options: tuple[Hbm, ...],
    glb_bandwidth: GlbBandwidth,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    energy: EnergyModel = DEFAULT_ENERGY,
) -> Space:
    """Every design of the product that satisfies the limits with at least one HBM option."""
    if axes.points == 0 or not hbm_options:
        raise AtollError(f"space {name} has an empty list for some parameter.")
    if axes.points > MAX_POINTS:
        raise AtollError(
            f"space {name} has {axes.points:,} points before its constraints, and at most "
            f"{MAX_POINTS:,} are allowed: shorten a list."
        )
    kept: list[Space] = []
    removed: Counter[str] = Counter()
    smallest_mm2 = np.inf
    for chunk in _chunks(name, axes, hbm_options, glb_bandwidth):
        smallest_mm2 = min([smallest_mm2, *(chunk.area_with(hbm).min() for hbm in hbm_options)])
        allowed = np.ones_like(chunk.hbm_allowed)
        for constraint, satisfied in _checks(chunk, limits, energy):
            removed[constraint] += int((~satisfied).sum())
            allowed &= satisfied
        chunk = replace(chunk, hbm_allowed=allowed)
        kept.append(chunk.subset(np.flatnonzero(allowed.any(axis=1))))
    allowed = np.concatenate([chunk.hbm_allowed for chunk in kept])
    if len(allowed) == 0:
        constraint, count = removed.most_common(1)[0]
        raise InfeasibleError(
            f"space {name} is empty: {constraint} alone removes {count:,} of its "
            f"{axes.points * len(hbm_options):,} pairs of chip and HBM, and the smallest chip in "
            f"it has {smallest_mm2:.2f} mm2."
        )
    used = np.flatnonzero(allowed.any(axis=0))
    arrays = {array: np.concatenate([getattr(c, array) for c in kept]) for array in ARRAYS}
    return Space(
        name=name,
        hbm_options=tuple(hbm_options[option] for option in used),
        hbm_allowed=allowed[:, used],
        **arrays,
    )


def _chunks(
    name: str, axes: Axes, hbm_options: tuple[Hbm, ...], glb_bandwidth: GlbBandwidth
) -> Iterator[Space]:
    """The whole product, unconstrained, in pieces."""
    for start in range(0, axes.points, _CHUNK_POINTS):
        flat = np.arange(start, min(start + _CHUNK_POINTS, axes.points))
        yield product_points(name, axes, hbm_options, glb_bandwidth, flat)


def product_points(
    name: str,
    axes: Axes,
    hbm_options: tuple[Hbm, ...],
    glb_bandwidth: GlbBandwidth,
    flat: IntArray,
) -> Space:
    """The points at these places of the whole product, unconstrained."""
    lists = [np.asarray(values) for values in axes.lists()]
    shape = [len(values) for values in lists]
    columns = [v[i] for v, i in zip(lists, np.unravel_index(flat, shape), strict=True)]
    tensor_cores, vector_cores, width, depth, vector_width, glb, clock = columns
    if axes.vector_width is None:
        vector_width = width
    return Space(
        name=name,
        tensor_cores=tensor_cores,
        vector_cores=vector_cores,
        width=width,
        depth=depth,
        vector_width=vector_width,
        glb_bytes=glb,
        glb_bandwidth_Bpc=glb_bandwidth.bytes_per_clock(glb),
        clock_Hz=clock.astype(np.float64),
        area_mm2=area_mm2(tensor_cores, vector_cores, width, depth, vector_width, glb),
        hbm_options=hbm_options,
        hbm_allowed=np.ones((len(flat), len(hbm_options)), dtype=np.bool_),
    )


def allowed_options(
    space: Space, limits: Limits, energy: EnergyModel = DEFAULT_ENERGY
) -> NDArray[np.bool_]:
    """[design, HBM option]: which pairs satisfy the limits."""
    allowed = np.ones_like(space.hbm_allowed)
    for _, satisfied in _checks(space, limits, energy):
        allowed &= satisfied
    return allowed


def _checks(
    space: Space, limits: Limits, energy: EnergyModel
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each stated constraint in words, with whether each [design, HBM option] satisfies it."""
    options = space.hbm_options
    shape = space.hbm_allowed.shape
    if limits.max_area_mm2 is not None or limits.min_area_mm2 is not None:
        area = np.stack([space.area_with(hbm) for hbm in options], axis=1)
        if limits.max_area_mm2 is not None:
            yield f"max_area {limits.max_area_mm2:g} mm2", area <= limits.max_area_mm2
        if limits.min_area_mm2 is not None:
            large = area >= limits.min_area_mm2
            if limits.single_cores_may_be_smaller:
                large |= ((space.tensor_cores == 1) | (space.vector_cores == 1))[:, None]
            yield f"min_area {limits.min_area_mm2:g} mm2", large
    if limits.max_power_W is not None:
        power = np.stack([space.peak_power_with(hbm, energy) for hbm in options], axis=1)
        yield f"max_power {limits.max_power_W:g} W", power <= limits.max_power_W
    if limits.min_peak_flops is not None:
        cells = space.tensor_cores * space.width * space.depth
        fast = 2.0 * cells * space.clock_Hz >= limits.min_peak_flops
        yield (
            f"min_peak {limits.min_peak_flops / 1e12:g} TFLOP/s",
            np.broadcast_to(fast[:, None], shape),
        )
    if limits.min_hbm_capacity_bytes is not None:
        enough = np.array([h.capacity_bytes >= limits.min_hbm_capacity_bytes for h in options])
        text = f"min_hbm_capacity {limits.min_hbm_capacity_bytes / GIB:g} GiB"
        yield text, np.broadcast_to(enough, shape)
    if limits.min_hbm_bandwidth_Bps is not None:
        enough = np.array([h.bandwidth_Bps >= limits.min_hbm_bandwidth_Bps for h in options])
        text = f"min_hbm_bandwidth {limits.min_hbm_bandwidth_Bps / 1e9:g} GB/s"
        yield text, np.broadcast_to(enough, shape)


def phaze_space(hbm_Bps: float | None = None, glb_Bpc: float | None = None) -> Space:
    """PHAZE's 29,360 designs, from its rule: 13 x 13 x 8 x 8 x 7 points filtered by area.

    The area budget is that of 8 tensor cores of 128x128, 2 vector cores of 128 and 128 MiB; a
    design below 0.3 of it stays only with a single tensor core or a single vector core. HBM of 32,
    64 or 80 GiB. PHAZE fixes the bandwidths of the HBM and of the shared buffer (bytes per clock);
    where they are not given, they are 1.2 TB/s and 128 bytes per clock and MiB.
    """
    counts = tuple(2**k for k in range(13))
    sides = tuple(2**k for k in range(1, 9))
    budget_mm2 = float(area_mm2(8, 2, 128, 128, 128, 128 * MIB))
    bandwidth_Bps = hbm_Bps or HBM_BANDWIDTH_BPS
    return build_space(
        name="phaze",
        axes=Axes(
            tensor_cores=counts,
            vector_cores=counts,
            width=sides,
            depth=sides,
            glb_bytes=tuple(2**k * MIB for k in range(1, 8)),
        ),
        hbm_options=tuple(Hbm(capacity * GIB, bandwidth_Bps) for capacity in (32, 64, 80)),
        glb_bandwidth=DEFAULT_GLB if glb_Bpc is None else GlbBandwidth(fixed_Bpc=glb_Bpc),
        limits=Limits(
            max_area_mm2=budget_mm2,
            min_area_mm2=0.3 * budget_mm2,
            single_cores_may_be_smaller=True,
        ),
    )
