"""Files for ZigZag hold the chip and the mappings of a search's answer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

import atoll
from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.export.zigzag import mapped_products, write_zigzag

SPACE = """
name: few
template: physical-7nm
tensor_cores: [12, 16]
vector_cores: [2]
width: [128]
depth: [128]
vector_width: [512]
glb: [32 MiB]
clock: [0.9 GHz]
hbm: [hbm2e]
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> SearchAnswer:
    folder = tmp_path_factory.mktemp("zigzag")
    (folder / "space.yaml").write_text(SPACE)
    result = atoll.search(
        model="bert-large",
        devices=16,
        batch=64,
        space=str(folder / "space.yaml"),
        baselines=False,
        workers=0,
    )
    return result.answer


def test_a_mapping_uses_cores_and_buffers_that_the_chip_has(answer: SearchAnswer) -> None:
    chip = answer.best.accelerator
    products = dict(mapped_products(answer))
    assert len(products) > 10
    for product in products.values():
        cores = product.cores_batch * product.cores_rows * product.cores_columns
        assert cores <= chip.tensor_cores
        assert product.buffer_bytes <= chip.glb_MiB * 2**20
        least = product.m * product.n * product.k / (chip.width * chip.depth * chip.tensor_cores)
        assert product.cycles >= least
        assert 0.0 < product.utilisation <= 1.0
        once = 2 * (product.m * product.k + product.k * product.n + product.m * product.n)
        assert product.hbm_bytes >= once


def test_loops_cover_every_product_and_fill_whole_arrays(
    answer: SearchAnswer, tmp_path: Path
) -> None:
    files = write_zigzag(answer, tmp_path / "zigzag")
    contents = {path.name: yaml.safe_load(path.read_text()) for path in files}
    mappings = {entry["name"]: entry for entry in contents["mapping.yaml"]}
    products = dict(mapped_products(answer))
    assert set(products) == {layer["name"] for layer in contents["workload.yaml"]}
    for layer in contents["workload.yaml"]:
        entry, product = mappings[layer["name"]], products[layer["name"]]
        loops = [(name, size) for name, size in entry["temporal_ordering"]]
        for unrolled in entry["spatial_mapping"].values():
            loops += [(text.split(", ")[0], int(text.split(", ")[1])) for text in unrolled]
        sizes = [math.prod(s for name, s in loops if name == f"D{d}") for d in range(3)]
        assert sizes == layer["loop_sizes"]
        sides = {"m": (product.m, product.n), "n": (product.n, product.m)}
        rows, columns = sides[product.streamed]
        assert sizes[0] >= rows and sizes[1] >= product.k and sizes[2] >= columns
    arrays = contents["accelerator.yaml"]["operational_array"]["sizes"]
    chip = answer.best.accelerator
    assert arrays == [chip.depth, chip.width, chip.tensor_cores]


def test_an_answer_without_mappings_is_refused(answer: SearchAnswer, tmp_path: Path) -> None:
    from dataclasses import replace

    models = tuple(replace(model, layers=()) for model in answer.best.models)
    older = replace(answer, best=replace(answer.best, models=models))
    with pytest.raises(AtollError, match="search again"):
        write_zigzag(older, tmp_path)
