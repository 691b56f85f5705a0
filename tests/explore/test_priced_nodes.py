"""Pairs of a chip and a variant cost the same alone as in a table of all chips and variants."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import random_space, tiny_setting, tiny_variants

from atoll.cost.chips import chips_of_space
from atoll.explore.pricing.energy import operator_repeats, variant_traffic
from atoll.explore.pricing.evaluate import PricedChips
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.profiles import DEFAULT


@pytest.mark.parametrize("template", ["physical-7nm", "systolic"])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_cost_what_they_cost_among_all(template: str, seed: int) -> None:
    chips = chips_of_space(random_space(seed, 12, template=TEMPLATES[template]), DEFAULT)
    variants, setting = tiny_variants(DEFAULT, 4), tiny_setting(DEFAULT, 4)
    drawn = np.random.default_rng(seed).random((len(chips), len(variants.variants))) < 0.2
    nodes = tuple(np.ascontiguousarray(axis) for axis in np.nonzero(drawn))
    among_all = PricedChips.of(chips, variants, setting)
    alone = PricedChips.of(chips, variants, setting, nodes=nodes)
    assert (alone.costs.tensor_s == 0.0).sum() > (among_all.costs.tensor_s == 0.0).sum()
    pairs = zip(
        (*alone.schedule_bounds(*nodes), alone.floors(*nodes), alone.forward_s(*nodes)),
        (*among_all.schedule_bounds(*nodes), among_all.floors(*nodes), among_all.forward_s(*nodes)),
        strict=True,
    )
    assert all((one == other).all() for one, other in pairs)
    repeats = operator_repeats(variants)
    traffics = zip(
        variant_traffic(alone, repeats), variant_traffic(among_all, repeats), strict=True
    )
    assert all((one[nodes] == other[nodes]).all() for one, other in traffics)
