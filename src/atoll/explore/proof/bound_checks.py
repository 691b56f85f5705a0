"""Checks that lower bounds are not above the values they bound, as every proof relies on it.

A bound above a step that exists would rule out designs that are better than the answer, in silence.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import Chips
from atoll.explore.pricing.bounds import chip_rates, layer_rooflines
from atoll.explore.pricing.evaluate import PricedChips
from atoll.explore.pricing.workloads import Variant, Variants

ROUNDING = 1e-8
"""Relative. Schedules may exceed a capacity by 1e-9, as shares add up inexactly."""


def chip_name(chips: Chips, chip: int) -> str:
    return (
        f"design {chips.design[chip]} ({chips.tensor_cores[chip]} TC, "
        f"{chips.vector_cores[chip]} VC, HBM of {chips.hbm_Bps[chip] / 1e9:g} GB/s)"
    )


def variant_name(variants: Variants, variant: Variant) -> str:
    model = variants.workloads[variant.workload].name
    return f"{model} at microbatch {variant.microbatch} and tensor width {variant.tp}"


def check_step(bound_s: float, step_s: float, chip: str, variant: str) -> None:
    """Raise where the bound of a node is above the step of one of its plans."""
    if bound_s > step_s * (1.0 + ROUNDING):
        raise ArithmeticError(
            f"internal error: {chip} with {variant}: the step is bounded by {bound_s:.9g} s from "
            f"below, but a plan takes {step_s:.9g} s; no proof of this search would hold."
        )


def check_layers(priced: PricedChips, node_chip: Ints, node_variant: Ints, upper_s: Floats) -> None:
    """Raise where the roofline of a layer is above its schedule (nodes, layers, passes)."""
    chips, variants = priced.chips, priced.variants
    pass_s = layer_rooflines(chip_rates(chips), variants, priced.setting, priced.work)
    roofline_s = pass_s.sum(axis=2)
    ranges = variants.layer_ranges
    for v in np.unique(node_variant):
        nodes = np.flatnonzero(node_variant == v)
        bound_s = roofline_s[node_chip[nodes], ranges[v] : ranges[v] + variants.variants[v].layers]
        schedule_s = upper_s[nodes, : bound_s.shape[1]].sum(axis=2)
        wrong = np.argwhere(bound_s > schedule_s * (1.0 + ROUNDING))
        if len(wrong):
            node, layer = wrong[0]
            variant = variants.variants[v]
            raise ArithmeticError(
                f"internal error: {chip_name(chips, int(node_chip[nodes[node]]))} with "
                f"{variant_name(variants, variant)}: layer {variant.passes[layer].name} "
                f"is bounded by {bound_s[node, layer]:.9g} s from below, but a schedule takes "
                f"{schedule_s[node, layer]:.9g} s; no proof of this search would hold."
            )
