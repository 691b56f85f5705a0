"""The space that a job searches, with its limits and memories applied, and its description."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from atoll.answers.search import SpaceAnswer
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.units import format_bandwidth, format_bytes
from atoll.explore.pricing.layouts import PowerLimit
from atoll.explore.strategies import STRATEGIES
from atoll.fabric.topology import parse_linked_network, parse_topology
from atoll.hardware.accelerator import GIB, Hbm
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.product_space import ProductSpace, SearchedSpace, phaze_space, widened_space
from atoll.hardware.silicon.physical import PHYSICAL, is_physical
from atoll.hardware.silicon.systolic import SYSTOLIC
from atoll.hardware.space import DesignLimits, DesignSpace, allowed_options, template_axes
from atoll.hardware.spacefile import read_space, template_space
from atoll.profiles import job_profile
from atoll.questions import SearchQuestion

T = TypeVar("T", "SearchScope", DesignLimits)
PHAZE_SPACE = "phaze"
LiftedLimit = Literal["max_area", "max_power"] | None
"""A limit of a space that the job's limit replaces, for shadow prices."""


@dataclass(frozen=True)
class SearchScope:
    """What was searched, within the job's limits."""

    space: str
    designs: int  # chips; for a space outside memory, points before its constraints
    area_mm2: tuple[float, float]
    """Of the smallest and largest chip with HBM interfaces; outside memory, bounds."""
    hbm_bytes: tuple[int, ...]
    max_area_mm2: float | None
    max_power_W: float | None
    """Limits of every chip, from the job, the template's budget or the space."""
    max_W_per_mm2: float | None = None
    sustained: PowerLimit | None = None
    """Limit on the power of a pass instead; chips that would draw more wait."""
    notes: tuple[str, ...] = ()
    """Surprises for the reader: limits that exclude nothing, a widened space."""

    def sentence(self) -> str:
        least, most = self.area_mm2
        rated = PowerLimit(self.max_power_W or np.inf, self.max_W_per_mm2 or np.inf).words()
        power = f" and at most {rated}" if rated else ""
        if self.sustained is not None:
            power = f" and at most {self.sustained.words()} in a pass"
        memories = " or ".join(f"{size / GIB:g}" for size in self.hbm_bytes)
        return (
            f"{self.space}: {self.designs:,} chips of {least:.1f} to {most:.1f} mm2"
            f"{power}, {memories} GiB of HBM"
        )

    def answer(self) -> SpaceAnswer:
        return SpaceAnswer(
            name=self.space,
            designs=self.designs,
            area_mm2=self.area_mm2,
            hbm_GiB=tuple(size / GIB for size in self.hbm_bytes),
        )


def open_space(
    job: SearchQuestion, lifted: LiftedLimit = None
) -> tuple[SearchedSpace, SearchScope]:
    """Return the space of a job within its limits (not built if large) and its scope."""
    if job.per and job.pareto:
        raise AtollError("job: pareto: fronts are of throughput; ask for them without per.")
    profile, name = job_profile(job), _space_name(job)
    max_area_mm2, max_power_W = job.max_area, job.max_power
    if job.power == "sustained":
        max_power_W = None
    notes: list[str] = []
    limits = DesignLimits()
    if name == PHAZE_SPACE:
        if job.template not in (None, SYSTOLIC.name):
            raise AtollError(
                f"job: template: the chips of space {PHAZE_SPACE} are of template {SYSTOLIC.name}; "
                f"leave out space for the lists of {job.template}."
            )
        space = phaze_space(profile.hbm_bandwidth_Bps, profile.glb_bandwidth_Bpc)
        largest_mm2 = float(space.area_mm2.max())
        if profile.widens_space and max_area_mm2 is not None and max_area_mm2 > largest_mm2:
            space = widened_space(max_area_mm2)
            notes.append(_widened_note(largest_mm2, max_area_mm2))
        options = chosen_hbm(space.name, space.hbm_options, job.hbm)
        allowed = np.ones((len(space), len(options)), np.bool_)
        space = replace(space, hbm_options=options, hbm_allowed=allowed)
        if job.robust:
            raise _no_ranges(space.name)
    else:
        described = described_space(job, lifted)
        if job.robust and not is_physical(described.template):
            raise _no_ranges(described.name)
        max_area_mm2, max_power_W = _budget(job, described)
        notes += _reticle_notes(max_area_mm2, described)
        if not described.resident:
            _refuse_large(job, described)
            space_and_scope = _large_space(job, described, notes)
            return _with_pass_limit(*space_and_scope, sustained_limit(job, lifted))
        try:
            space = described.build()
        except AtollError as error:
            raise type(error)(f"{name}: {error}") from None
        limits = described.limits
    cooled = None if job.power == "sustained" else job.cooling
    space, scope = _restricted(_cooled(space, cooled), max_area_mm2, max_power_W, notes)
    scope = replace(scope, max_W_per_mm2=cooled)
    scope = _tightened(scope, limits.max_area_mm2, limits.max_power_W, limits.max_W_per_mm2)
    if name != PHAZE_SPACE:
        space = with_solved_clocks(space, replace(described, limits=limits_of(job, described)))
        scope = replace(scope, designs=len(space))
    return _with_pass_limit(space, scope, sustained_limit(job, lifted))


def with_solved_clocks(space: DesignSpace, lists: ProductSpace) -> DesignSpace:
    """Return a space with the designs at clocks that limits on power leave between listed ones."""
    every = np.arange(len(lists))
    solved, _ = lists.solved_designs(every, lists.points(every))
    columns = [lists.hbm_options.index(hbm) for hbm in space.hbm_options]
    allowed = solved.hbm_allowed[:, columns]
    return space.joined(replace(solved, hbm_options=space.hbm_options, hbm_allowed=allowed))


def _cooled(space: DesignSpace, W_per_mm2: float | None) -> DesignSpace:
    """Return the designs that can be cooled with all parts busy."""
    if W_per_mm2 is None:
        return space
    allowed = space.hbm_allowed & allowed_options(space, DesignLimits(max_W_per_mm2=W_per_mm2))
    if not allowed.any():
        least = min(
            float((space.peak_power_with(hbm) / space.area_with(hbm)).min())
            for hbm in space.hbm_options
        )
        raise InfeasibleError(
            f"job: cooling: no design of space {space.name} stays within {W_per_mm2:g} W/mm2; the "
            f"least takes {least:.2f} at its peak."
        )
    return replace(space, hbm_allowed=allowed).subset(np.flatnonzero(allowed.any(axis=1)))


def sustained_limit(job: SearchQuestion, lifted: LiftedLimit = None) -> PowerLimit | None:
    """Return the limit on the power of a pass, where the job limits that."""
    if job.power != "sustained":
        return None
    power_W, dense = job.max_power, job.cooling
    if _space_name(job) != PHAZE_SPACE:
        rated = job.changed(power="rated")
        limits = limits_of(rated, described_space(rated, lifted))
        power_W, dense = limits.max_power_W, limits.max_W_per_mm2
    return PowerLimit(power_W or np.inf, dense or np.inf) if power_W or dense else None


def _with_pass_limit(
    space: SearchedSpace, scope: SearchScope, limit: PowerLimit | None
) -> tuple[SearchedSpace, SearchScope]:
    """Add the limit on the power of passes, which a chip must be below when idle."""
    if limit is None:
        return space, scope
    least, most = (
        (space.corner(min), space.corner(max)) if isinstance(space, ProductSpace) else (space,) * 2
    )
    idle_W = [least.resting_power_with(hbm) for hbm in space.hbm_options]
    left_W = [
        limit.of(most.area_with(hbm)) - drawn_W
        for hbm, drawn_W in zip(space.hbm_options, idle_W, strict=True)
    ]
    if np.max(left_W) <= 0.0:
        raise InfeasibleError(
            f"job: max_power: no design of space {space.name} stays within {limit.words()}; "
            f"the least takes {np.min(idle_W):.1f} W at rest."
        )
    return space, replace(scope, sustained=limit)


def _space_name(job: SearchQuestion) -> str:
    """Return the name of the job's space; by default PHAZE's or the template's."""
    template = job.template or job_profile(job).template
    return job.space or (PHAZE_SPACE if template == SYSTOLIC.name else template)


def described_space(job: SearchQuestion, lifted: LiftedLimit = None) -> ProductSpace:
    """Return the space of a file or template with the job's memories but not its limits."""
    name = _space_name(job)
    described = template_space(name) if job.space is None else read_space(name, job.template)
    options = chosen_hbm(described.name, described.hbm_options, job.hbm)
    limits = described.limits
    if job.power == "sustained":  # not a limit on chips
        limits = replace(limits, max_power_W=None, max_W_per_mm2=None)
    if lifted == "max_area":
        limits = replace(limits, max_area_mm2=described.reticle_mm2)
    if lifted == "max_power":
        limits = replace(limits, max_power_W=None)
    described = replace(described, hbm_options=options, limits=limits)
    if described.template.edge_mm is None or job.network is None:
        return described
    linked_network = parse_linked_network(job.network)
    if linked_network is None:
        raise AtollError(
            f"job: network: chips of space {name} differ in their links; name a topology and their "
            f"bandwidth, such as {parse_topology('switch-8').named(300e9)}."
        )
    _, link_Bps = linked_network
    return described.part({**described.axes.values, "link_Bps": (link_Bps,)})


def listed_space(job: SearchQuestion) -> ProductSpace:
    """Return the lists of a job's space before its limits."""
    if _space_name(job) != PHAZE_SPACE:
        return described_space(job)
    profile = job_profile(job)
    built = phaze_space(profile.hbm_bandwidth_Bps, profile.glb_bandwidth_Bpc)
    options = chosen_hbm(built.name, built.hbm_options, job.hbm)
    return ProductSpace(built.name, template_axes(SYSTOLIC), options)


def is_linked(job: SearchQuestion) -> bool:
    """Return whether the chips of the job's space differ in their links."""
    return _space_name(job) != PHAZE_SPACE and described_space(job).template.edge_mm is not None


def limits_of(job: SearchQuestion, space: ProductSpace) -> DesignLimits:
    """Return the tighter of the limits of the space and the job."""
    return _tightened(
        space.limits, *_budget(job, space), None if job.power == "sustained" else job.cooling
    )


def _tightened(
    limited: T, area_mm2: float | None, power_W: float | None, W_per_mm2: float | None
) -> T:
    """Add limits to those of a record."""
    return replace(
        limited,
        max_area_mm2=_tighter(limited.max_area_mm2, area_mm2),
        max_power_W=_tighter(limited.max_power_W, power_W),
        max_W_per_mm2=_tighter(limited.max_W_per_mm2, W_per_mm2),
    )


def _budget(job: SearchQuestion, space: ProductSpace) -> tuple[float | None, float | None]:
    """Return the job's limits on area and power; a template's budget is the default."""
    area_mm2, power_W = job.max_area, job.max_power
    if job.space is None:
        area_mm2 = area_mm2 or space.template.budget_mm2
        power_W = power_W or space.template.budget_W
    return area_mm2, None if job.power == "sustained" else power_W


def _no_ranges(space: str) -> AtollError:
    return AtollError(
        f"job: robust: constants behind the areas of space {space} have no ranges; take a template "
        f"of the physical model, such as {PHYSICAL[3].name}."
    )


def _refuse_large(job: SearchQuestion, space: ProductSpace) -> None:
    """Refuse options that need all chips of a large space in memory."""
    strategy = STRATEGIES[job.strategy]
    exact_front = job.pareto and not strategy.samples
    options = (("pareto", exact_front), ("robust", job.robust > 0), ("strategy", strategy.whole))
    for name, requested in options:
        if requested:
            raise AtollError(
                f"job: {name}: not with a space of {len(space):,} points: {name} needs the whole "
                "space in memory; shorten a list."
            )


def _widened_note(largest_mm2: float, max_area_mm2: float) -> str:
    note = (
        f"PHAZE's space ends at {largest_mm2:.1f} mm2: beyond that, chips of finer lists up to "
        f"{min(max_area_mm2, RETICLE_MM2):g} mm2 were searched with it"
    )
    if max_area_mm2 > RETICLE_MM2:
        note += f"; max_area {max_area_mm2:g} mm2 is more than a reticle holds (26 mm x 33 mm)"
    return note


# --- HBM ------------------------------------------------------------------------------------------


def chosen_hbm(
    space: str, options: tuple[Hbm, ...], capacities_bytes: Sequence[int]
) -> tuple[Hbm, ...]:
    """Return the options of these capacities (default: all).

    A capacity that the space does not list is accepted where all listed options have the same
    bandwidth, interface and power; otherwise its stacks would be unknown.
    """
    if not capacities_bytes:
        return options
    wanted = list(dict.fromkeys(capacities_bytes))
    listed = {option.capacity_bytes for option in options}
    alike = {(o.bandwidth_Bps, o.area_mm2, o.power_W) for o in options}
    missing = [size for size in wanted if size not in listed]
    if missing and len(alike) > 1:
        listing = ", ".join(
            f"{format_bytes(o.capacity_bytes)} at {format_bandwidth(o.bandwidth_Bps)}"
            for o in options
        )
        raise AtollError(
            f"job: hbm: space {space} has no HBM of {format_bytes(missing[0])}, and its own differ "
            f"in bandwidth or area: {listing}; take one of those, or give a space file whose hbm "
            "lists it, as examples/spaces/h100-budget.yaml does for 80 GiB."
        )
    chosen = [option for option in options if option.capacity_bytes in wanted]
    chosen += [replace(options[0], capacity_bytes=size) for size in missing]
    return tuple(sorted(chosen, key=lambda option: option.capacity_bytes) if missing else chosen)


# --- Limits ---------------------------------------------------------------------------------------


def _restricted(
    space: DesignSpace, max_area_mm2: float | None, max_power_W: float | None, notes: list[str]
) -> tuple[DesignSpace, SearchScope]:
    """Return the designs within the limits with the HBM options that allow it."""
    options = space.hbm_options
    area_mm2 = np.stack([space.area_with(option) for option in options], axis=1)
    allowed = space.hbm_allowed.copy()
    if max_area_mm2 is not None:
        within = area_mm2 <= max_area_mm2
        if not (allowed & within).any():
            raise InfeasibleError(
                f"job: max_area: no design of space {space.name} is within {max_area_mm2:g} mm2; "
                f"the smallest takes {area_mm2[allowed].min():.3f} mm2."
            )
        if within[allowed].all() and not notes:
            notes.append(_idle_area_note(space.name, max_area_mm2, area_mm2[allowed].max()))
        allowed &= within
    if max_power_W is not None:
        watts = np.stack([space.peak_power_with(option) for option in options], axis=1)
        within = watts <= max_power_W
        if not (allowed & within).any():
            raise InfeasibleError(
                f"job: max_power: no design of space {space.name} stays within {max_power_W:g} W; "
                f"the least takes {watts[allowed].min():.1f} W at its peak."
            )
        if within[allowed].all():
            notes.append(_idle_power_note(space.name, max_power_W, watts[allowed].max()))
        allowed &= within
    designs, areas = np.asarray(allowed.any(axis=1)), area_mm2[allowed]
    scope = SearchScope(
        space=space.name,
        designs=int(designs.sum()),
        area_mm2=(float(areas.min()), float(areas.max())),
        hbm_bytes=_capacities(options[i] for i in np.flatnonzero(allowed.any(axis=0))),
        max_area_mm2=max_area_mm2,
        max_power_W=max_power_W,
        notes=tuple(notes),
    )
    space = replace(space, hbm_allowed=allowed)
    return space if designs.all() else space.subset(designs), scope


def _large_space(
    job: SearchQuestion, space: ProductSpace, notes: list[str]
) -> tuple[ProductSpace, SearchScope]:
    """Return the space and scope within the limits, for a space outside memory."""
    limits, (max_area_mm2, max_power_W) = limits_of(job, space), _budget(job, space)
    least, most = space.corner(min), space.corner(max)
    smallest_mm2 = min(float(least.area_with(option)[0]) for option in space.hbm_options)
    largest_mm2 = _largest_mm2(space)
    largest_W = max(float(most.peak_power_with(option)[0]) for option in space.hbm_options)
    if max_area_mm2 is not None and not notes:
        reached = _tighter(largest_mm2, space.limits.max_area_mm2)
        if reached is not None and reached <= max_area_mm2:
            notes.append(_idle_area_note(space.name, max_area_mm2, reached))
    if max_power_W is not None:
        reached = _tighter(largest_W, space.limits.max_power_W)
        if reached is not None and reached <= max_power_W:
            notes.append(_idle_power_note(space.name, max_power_W, reached))
    scope = SearchScope(
        space=space.name,
        designs=len(space),
        area_mm2=(smallest_mm2, _tighter(largest_mm2, limits.max_area_mm2) or largest_mm2),
        hbm_bytes=_capacities(space.hbm_options),
        max_area_mm2=limits.max_area_mm2,
        max_power_W=limits.max_power_W,
        max_W_per_mm2=limits.max_W_per_mm2,
        notes=tuple(notes),
    )
    return replace(space, limits=limits), scope


def _reticle_notes(max_area_mm2: float | None, space: ProductSpace) -> list[str]:
    """Note that the reticle, not a limit of the job or space, ends the areas, if so."""
    most_mm2 = space.reticle_mm2
    ends = space.limits.max_area_mm2 == most_mm2 and (max_area_mm2 or np.inf) > most_mm2
    if not ends or _largest_mm2(space) <= most_mm2:
        return []
    return [
        f"chips of space {space.name} above {most_mm2:g} mm2 are left out: a reticle holds no "
        "larger die (26 mm x 33 mm)"
    ]


def _largest_mm2(space: ProductSpace) -> float:
    """Return the area with the largest value of every parameter, before the limits."""
    most = space.corner(max)
    return max(float(most.area_with(option)[0]) for option in space.hbm_options)


def _tighter(first: float | None, second: float | None) -> float | None:
    return min([limit for limit in (first, second) if limit is not None], default=None)


def _idle_area_note(space: str, limit_mm2: float, largest_mm2: float) -> str:
    return (
        f"max_area {limit_mm2:g} mm2 excludes nothing: no chip of space {space} takes more than "
        f"{largest_mm2:.1f} mm2"
    )


def _idle_power_note(space: str, limit_W: float, most_W: float) -> str:
    return (
        f"max_power {limit_W:g} W excludes nothing: no chip of space {space} takes more than "
        f"{most_W:.0f} W at its peak"
    )


def _capacities(options: Iterable[Hbm]) -> tuple[int, ...]:
    return tuple(sorted({option.capacity_bytes for option in options}))
