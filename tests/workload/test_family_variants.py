"""The road to a search: every family makes variants at one and two devices wide."""

from __future__ import annotations

import pytest

from atoll.explore.pricing.workloads import make_variants, make_workload
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE

from .published import FOLDER, PARAMETERS


@pytest.mark.parametrize("profile", [DEFAULT, PHAZE], ids=lambda profile: str(profile.name))
@pytest.mark.parametrize("name", PARAMETERS)
def test_every_family_makes_variants(name: str, profile: Profile) -> None:
    sequence = 577 if name.startswith("vit") else 256
    workload = make_workload(str(FOLDER / f"{name}.json"), 8, sequence)
    made = make_variants([workload], [1], [1, 2], 8, "full", profile)
    models = {variant.tp: variant.model for variant in made.variants}
    assert list(models) == [1, 2]
    one, two = models.values()
    assert one.parameters > two.parameters >= one.parameters // 2
    for variant in made.variants:
        blocks = [variant.facts.layers[kind.layer] for kind in variant.facts.blocks]
        layer, repeat = max(blocks, key=lambda block: block[1])
        assert layer.name in ("block", "encoder_block", "decoder_block") and repeat > 1
