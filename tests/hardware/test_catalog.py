"""The catalogue of chips and networks, and files of the same form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.fabric.nested import collective_s
from atoll.hardware.accelerator import GIB, MIB
from atoll.hardware.catalog import accelerator_names, load_accelerator, load_network, network_names

OWN_CHIP = """\
name: own
tensor_cores: 4
vector_cores: 4
width: 256
depth: 64
glb: 40 MiB
clock: 1.41 GHz
hbm: {capacity: 80 GiB, bandwidth: 2.04 TB/s}
"""


@pytest.mark.parametrize("name", accelerator_names())
def test_every_chip_loads_under_its_name(name: str) -> None:
    assert load_accelerator(name).name == name


@pytest.mark.parametrize("name", network_names())
def test_every_network_loads_under_its_name_and_is_slower_outwards(name: str) -> None:
    network = load_network(name)
    assert network.name == name
    for inner, outer in zip(network.levels, network.levels[1:], strict=False):
        assert outer.devices % inner.devices == 0
        assert outer.bandwidth_Bps <= inner.bandwidth_Bps
        assert outer.latency_s >= inner.latency_s


def test_the_reference_chip_is_tpu_v4() -> None:
    chip = load_accelerator("phaze-tpuv4")
    assert chip.peak_flops == pytest.approx(275e12, rel=0.001)  # published
    assert chip.glb_bytes == 128 * MIB
    assert chip.hbm.capacity_bytes == 32 * GIB
    assert chip.hbm.bandwidth_Bps == 1.2e12


def test_networks_have_the_published_bandwidths() -> None:
    (flat,) = load_network("flat-4gib").levels
    assert (flat.bandwidth_Bps, flat.latency_s) == (4 * GIB, 0.0)
    node, cluster = load_network("dgx-a100").levels
    assert (node.devices, node.bandwidth_Bps) == (8, 300e9)
    assert cluster.bandwidth_Bps == 25e9


@pytest.mark.parametrize(
    ("ranks", "bytes_", "seconds"),
    [(8, 2**21, 53.7e-6), (4, 2**24, 183.5e-6), (8, 2**29, 4226e-6)],
)
def test_all_reduces_take_what_nccl_takes_on_eight_a100(
    ranks: int, bytes_: int, seconds: float
) -> None:
    """NCCL 2.27.3 (aiconfigurator-core 0.12.0, Apache-2.0, arXiv:2601.06288)."""
    found_s = collective_s(load_network("dgx-a100"), "all_reduce", bytes_, ranks)
    assert found_s == pytest.approx(seconds, rel=0.05)


def test_a_chip_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_CHIP)
    chip = load_accelerator(path)
    assert chip.vector_width == chip.width == 256
    assert chip.glb_bandwidth_Bpc == 5120  # the A100's own figure, by the default rule
    assert chip.peak_flops == 2 * 4 * 256 * 64 * 1.41e9


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("phaze-tpu4", "accelerator 'phaze-tpu4' is not in the catalogue, did you mean phaze-tpuv"),
        ("zzz", "accelerator 'zzz' is not in the catalogue, known are phaze-tpuv4"),
        ("dir/zzz", "a file of your own must end in .yaml"),
        ("absent.yaml", "absent.yaml: no such file"),
    ],
)
def test_unknown_names(name: str, sentence: str) -> None:
    with pytest.raises(AtollError) as error:
        load_accelerator(name)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("2.04 TB/s", "80 GiB", ":8:36: hbm.bandwidth: expected a bandwidth such as"),
        ("1.41 GHz", "1.41e6", ':7:8: clock: expected a frequency such as "1.05 GHz", got 14100'),
        ("glb:", "gbl:", ":1:1: glb: required field is missing"),
        ("glb:", "gbl:", ":6:1: gbl: unknown field, did you mean glb?"),
    ],
)
def test_mistakes_in_a_chip(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_CHIP.replace(old, new))
    with pytest.raises(AtollError) as error:
        load_accelerator(path)
    assert f"{path}{sentence}" in str(error.value)


def test_levels_of_a_network_must_nest(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: net\nlevels:\n"
        "  - {name: node, devices: 8, bandwidth: 300 GB/s, latency: 1 us}\n"
        "  - {name: rack, devices: 12, bandwidth: 25 GB/s, latency: 5 us}\n"
    )
    with pytest.raises(AtollError, match="level rack has 12 devices, which is not a multiple of"):
        load_network(path)
