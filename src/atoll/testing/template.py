"""Contract of chip templates: areas add up, figures grow, bounds are below costs."""

from __future__ import annotations

import numpy as np

from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Spreads, Workload, make_variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.objective import Objective
from atoll.hardware.catalog import load_network
from atoll.hardware.energy import DEFAULT_ENERGY
from atoll.hardware.product_space import ProductSpace
from atoll.hardware.space import DEFAULT_GLB, HBM_OPTIONS, DesignAxes, DesignSpace, template_axes
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.template import MACHINE, ChipTemplate
from atoll.profiles import DEFAULT
from atoll.step.states import load_states
from atoll.testing.cost_model import check_cost_model
from atoll.workload.families.config import config_from_hf

SAMPLE = 12
MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
BATCH = 8


def check_chip_template(template: ChipTemplate, seed: int = 0) -> None:
    """Assert that a search may build on a template.

    Areas are positive and the sum of their parts; area, power, peak rates and further buffers grow
    or stay with every parameter (bounds take corners of a space); designs are priced one by one as
    all at once; products keep the contract of cost models on its cores; and on a small model no
    chip is faster than its roofline.
    """
    names = [parameter.name for parameter in template.parameters]
    assert len(set(names)) == len(names), "a parameter is named twice"
    for parameter in template.parameters:
        least = 0 if parameter.kind == "spares" else np.finfo(float).tiny
        assert parameter.values and min(parameter.values) >= least, f"{parameter.name}: no values"
        assert not parameter.tied or parameter.tied in names, f"{parameter.name}: tied to nothing"
    space = ProductSpace(
        template.name, template_axes(template), HBM_OPTIONS[-1:], DEFAULT_GLB
    ).sample(SAMPLE, seed)
    missing = set(MACHINE) - space.columns.keys()
    assert not missing, f"no column {', '.join(sorted(missing))}"
    _check_silicon(template, space)
    for index, parameter in enumerate(template.parameters):
        if len(parameter.values) > 1 and not parameter.tied:
            _check_growth(template, index)
    _check_prices(template, space)


def _check_silicon(template: ChipTemplate, space: DesignSpace) -> None:
    area = template.area_mm2(space.columns)
    assert area.shape == (len(space),) and np.all(area > 0.0), "an area is not positive"
    parts = template.area_parts(space.columns)
    assert all(np.all(mm2 >= 0.0) for mm2 in parts.values()), "a part has less than no area"
    assert np.allclose(sum(parts.values()), area, rtol=1e-9), "the parts do not add up to the area"
    power = template.power_W(space.columns, DEFAULT_ENERGY)
    assert power.shape == (len(space),) and np.all(power > 0.0), "a chip draws no power"
    for index in range(len(space)):
        alone = {name: values[index : index + 1] for name, values in space.columns.items()}
        assert np.isclose(template.area_mm2(alone)[0], area[index]), "one chip has another area"
        assert np.isclose(template.power_W(alone, DEFAULT_ENERGY)[0], power[index])
    if template.levels is not None:
        sizes, rates = template.levels.sizes(space.columns)
        shape = (len(space), len(template.levels.names))
        assert sizes.shape == rates.shape == shape, "sizes of further buffers"
        assert (
            np.all(sizes > 0.0)
            and np.all(rates > 0.0)
            and len(template.levels.J_per_byte) == shape[1]
        )


def _check_growth(template: ChipTemplate, index: int) -> None:
    """Check growth along one parameter, from the smallest and the largest chip."""
    name = template.parameters[index].name
    for pick in (min, max):
        ends = {p.name: (pick(p.values),) for p in template.parameters if not p.tied}
        axes = DesignAxes(ends | {name: tuple(sorted(template.parameters[index].values))}, template)
        space = ProductSpace(template.name, axes, HBM_OPTIONS[-1:], DEFAULT_GLB).build()
        for what, values in _figures(template, space.columns).items():
            assert np.all(np.diff(values) >= -1e-9 * values[:-1]), f"{what} falls with {name}"


def _figures(template: ChipTemplate, chips: Columns) -> dict[str, np.ndarray]:
    cells = chips["tensor_cores"] * chips["width"] * chips["depth"]
    figures = {
        "area": template.area_mm2(chips),
        "power": template.power_W(chips, DEFAULT_ENERGY),
        "the arrays' peak": cells * chips["clock_Hz"],
        "the lanes' peak": chips["vector_cores"] * chips["vector_width"] * chips["clock_Hz"],
        "the shared buffer": chips["glb_bytes"],
    }
    if template.levels is not None:
        for what, values in zip(("size", "rate"), template.levels.sizes(chips), strict=True):
            figures |= {
                f"the {what} of {n}": values[:, i] for i, n in enumerate(template.levels.names)
            }
    return figures


def _check_prices(template: ChipTemplate, space: DesignSpace) -> None:
    config = config_from_hf(MODEL, "config.json")
    workload = Workload("small", config, 128, BATCH)
    variants = make_variants([workload], (1, 2), (1,), 2, "optimal", DEFAULT, spreads=Spreads())
    setting = SearchSetting(
        network=load_network(DEFAULT.network),
        profile=DEFAULT,
        states=load_states(DEFAULT.optimizer),
        devices=2,
        recompute="optimal",
        zero=(0,),
        orders=("1f1b",),
        vpp=(),
    )
    search = Search(space, variants, setting, Objective.single(BATCH), 1e-3)
    bounds = search.scores.copy()
    scores = search.evaluate_all(np.arange(len(search.frontier.chips)))
    assert np.all(scores > 0.0), "the small model has no plan on a chip"
    assert np.all(scores <= bounds * (1 + 1e-9)), "a chip is faster than its roofline"
    if template.cost_model is not None:
        configs = search.frontier.chips.subset(np.arange(min(3, len(scores)))).tensor_configs
        check_cost_model(template.cost_model, configs=configs, tolerance=1e-9)
