"""The certificate of a search, counted in architectures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from atoll.cost.chips import distinct_rows
from atoll.explore.pricing.bounds import chip_rates, layer_rooflines
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.hardware.silicon.physical import is_physical
from atoll.hardware.template.stalls import CACHED
from atoll.hardware.template.template import ChipTemplate
from atoll.step.certificate import Certificate

CONSTRAINTS = "roofline or constraints"
"""Rule for points of a space outside memory, most of which were never built."""


def certificate_of(
    search: Search, outcome: SearchOutcome, tolerance: float, score: float
) -> Certificate:
    """Return the certificate of an outcome for a design of this score."""
    architectures = len(search.space)
    frontier = outcome.frontier
    designs, number = np.unique(frontier.chips.design, return_inverse=True)
    stage = np.zeros(len(designs), np.int64)
    np.maximum.at(stage, number, frontier.stage)
    closed = np.ones(len(designs), np.bool_)
    np.logical_and.at(closed, number, outcome.ruled_out)
    evaluated = int((stage == 2).sum())
    scheduled = designs[closed & (stage == 1)]
    name, elsewhere = "roofline", 0
    if search.reserve is not None:
        # Points of a large space are counted whether or not they satisfy the constraints, as most
        # were never built.
        name = CONSTRAINTS
        gone = np.unique(np.concatenate([scheduled, *search.reserve.scheduled]))
        scheduled = np.setdiff1d(gone, designs[(stage == 2) | ~closed])
        elsewhere = search.reserve.open_points(search.threshold())
        elsewhere = min(elsewhere, architectures - evaluated - len(scheduled))
    left = int((~closed & (stage < 2)).sum()) + elsewhere
    return Certificate(
        score=score,
        bound=outcome.bound,
        tolerance=tolerance,
        items=architectures,
        kind="architecture",
        evaluated=evaluated,
        ruled_out={
            name: architectures - evaluated - len(scheduled) - left,
            "schedule": len(scheduled),
        },
        tightened=outcome.tightened,
        peak_bound=max(_peak_bound(search), outcome.bound),
        template=_template_words(search.space.template),
    )


def _template_words(template: ChipTemplate) -> str:
    """Name a template and its kind of chip, and say that no other was searched."""
    kind = "systolic; " if is_physical(template) and template.stalls != CACHED else ""
    return f"{template.name} ({kind}no other searched)"


def _peak_bound(search: Search) -> float:
    """Return a score that no layout exceeds, searched or not.

    A sample's operators take no less than their products and vector work at the rates that a chip
    reaches (`layer_rooflines`, without bytes and collectives, which depend on the layout), and all
    devices share the batch: step >= samples x seconds of one sample / devices.

    Infinite where it is not known: in spaces whose chips are not all in memory, and where every
    degree that was tried divides the products, so that some may be counted twice.
    """
    context, variants, setting = search.context, search.variants, search.setting
    chosen = {
        variant.workload: number
        for number, variant in enumerate(variants.variants)
        if variant.width == 1
    }
    if search.reserve is not None or len(chosen) < len(variants.workloads):
        return math.inf
    nothing = np.zeros_like(context.work.bytes)
    work = replace(context.work, bytes=nothing, link_s=nothing, starts=nothing)
    rates, row = distinct_rows(chip_rates(search.frontier.chips))
    numbers = np.array([chosen[model] for model in range(len(chosen))])
    pass_s = layer_rooflines(rates, variants, setting, work, numbers)
    step_s = np.empty((len(rates), len(chosen)))
    for model, number in chosen.items():
        variant = variants.variants[number]
        layers = slice(variant.first_layer, variant.first_layer + variant.layers)
        layers_s = pass_s[:, layers].sum(axis=2)
        microbatch_s = layers_s @ np.array(variant.facts.repeats, dtype=np.float64)
        step_s[:, model] = microbatch_s * variant.microbatches / setting.devices
    scores = search.objective.scores(step_s)[row] / search.frontier.price
    return float(scores.max())
