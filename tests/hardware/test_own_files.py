"""Devices and networks of one's own, as the examples write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import hardware
from atoll.api import estimate
from atoll.base.errors import AtollError
from atoll.catalogue import describe_file
from atoll.hardware.catalog import load_accelerator, load_network, network_names
from atoll.hardware.spacefile import read_space
from atoll.hardware.wafer_files import load_wafer
from atoll.questions import EstimateQuestion
from atoll.questions.sweeps import sweep_axes

EXAMPLES = Path(__file__).parents[2] / "examples/devices"


def test_the_examples_of_a_device_and_of_a_cluster_are_priced() -> None:
    wide = {"tp": 8, "pp": 8, "batch": 512}
    usual = estimate("llama3-70b", "h100", 512, **wide)  # type: ignore[arg-type]
    pods = estimate("llama3-70b", "h100", 512, network=EXAMPLES / "pods.yaml", **wide)  # type: ignore[arg-type]
    own = estimate("llama3-70b", EXAMPLES / "h20.yaml", 512, **wide)  # type: ignore[arg-type]
    # Two pods: stages send, and replicas reduce, over the slower spine.
    assert usual.step.time_s < pods.step.time_s < 1.5 * usual.step.time_s
    assert 4 * usual.step.time_s < own.step.time_s < 8 * usual.step.time_s


def _step_s(network: str | Path) -> float:
    job = {"batch": 128, "tp": 4, "pp": 2, "zero": 1}
    return estimate("llama2-7b", "h100", 32, network=network, **job).step.time_s  # type: ignore[arg-type]


def test_a_network_with_half_the_bandwidth_of_a_level_is_never_faster(tmp_path: Path) -> None:
    usual = load_network("dgx-h100")
    for i, level in enumerate(usual.levels):
        halved = f"dgx-h100:{level.name}={level.bandwidth_Bps / 2e9:g}GB/s"
        network = load_network(halved)
        assert network.name == halved
        assert network.levels == usual.faster(0.5, i).levels
        assert _step_s(halved) > _step_s("dgx-h100")
    text = describe_file("dgx-h100").replace("400 Gb/s", "200 Gb/s")
    (tmp_path / "net.yaml").write_text(text)
    assert _step_s(tmp_path / "net.yaml") == _step_s("dgx-h100:infiniband=200Gbit/s")


@pytest.mark.parametrize("name", network_names())
def test_the_printed_file_of_a_network_is_the_network_of_the_catalogue(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "net.yaml").write_text(describe_file(f"network/{name}"))
    assert load_network(tmp_path / "net.yaml").levels == load_network(name).levels


def test_levels_can_be_changed_of_files_of_links_and_of_several_levels(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(describe_file("dgx-h100").replace("dgx-h100", "mine"))
    (tmp_path / "job.yaml").write_text(
        "model: gpt2-xl\ndevice: h100\ndevices: 16\nbatch: 64\nnetwork: net.yaml:nvlink=1GB/s\n"
    )
    assert estimate(job=tmp_path / "job.yaml").run.network.name == "mine:nvlink=1GB/s"
    both = load_network("switch-8@450GB/s:infiniband=400Gb/s:switch=1GB/s")
    assert [level.bandwidth_Bps for level in both.levels] == [1e9, 50e9]
    swept = sweep_axes(EstimateQuestion, ["network=dgx-h100,dgx-h100:infiniband=25GB/s", "tp=1"])
    assert swept == {"network": ("dgx-h100", "dgx-h100:infiniband=25GB/s"), "tp": (1,)}


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ("dgx-h100:ib=25GB/s", "dgx-h100 has no level 'ib', only nvlink, infiniband"),
        ("dgx-h100:nvlink=25", "dgx-h100:nvlink: expected a bandwidth .* without a unit"),
        ("dgx-h100:nvlink=0GB/s", "dgx-h100:nvlink: expected more than nothing"),
        ("200 Gbit/s", "name the network and the level .* such as dgx-h100:infiniband=25GB/s"),
    ],
)
def test_a_bandwidth_without_a_known_level_is_refused(network: str, sentence: str) -> None:
    with pytest.raises(AtollError, match=sentence):
        load_network(network)


def test_a_file_that_leaves_out_what_small_messages_cost_is_called_optimistic(
    tmp_path: Path,
) -> None:
    text = describe_file("dgx-h100")
    job = {"batch": 64, "network": tmp_path / "net.yaml"}
    (tmp_path / "net.yaml").write_text(text)
    assert not estimate("gpt2-xl", "h100", 16, **job).notes  # type: ignore[arg-type]
    (tmp_path / "net.yaml").write_text(text.replace("few_members: 0.44", ""))
    (note,) = estimate("gpt2-xl", "h100", 16, **job).notes  # type: ignore[arg-type]
    assert note.startswith("optimistic for small messages: network dgx-h100 states no few_members")


CATALOG = Path(hardware.__file__).parent / "catalog"


@pytest.mark.parametrize(
    ("entry", "line", "range_words"),
    [
        ("wafers/default", "usable_area: 46225e6 mm2", "1 mm2 and 10000000 mm2"),
        ("wafers/default", "grid: [-3, 4]", "more than 0"),
        ("wafers/default", "grid: [1000000, 4]", "at most 10000"),
        ("wafers/default", "max_power: 1e9 W", "100 mW and 10 MW"),
        ("wafers/default", "step: 1e6 s", "1 ns and 1 s"),
        ("accelerators/phaze-tpuv4", "clock: 1.83e12 GHz", "1 MHz and 100 GHz"),
        ("accelerators/phaze-tpuv4", "tensor_cores: 90000000", "at most 1000000"),
        ("accelerators/phaze-tpuv4", "dies: -3", "more than 0"),
    ],
)
def test_wafers_and_chips_that_nobody_could_build_are_refused_with_the_range(
    entry: str, line: str, range_words: str, tmp_path: Path
) -> None:
    key = line.split(":")[0]
    text = (CATALOG / f"{entry}.yaml").read_text(encoding="utf-8")
    kept = [other for other in text.splitlines() if not other.startswith(f"{key}:")]
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join([*kept, line]), encoding="utf-8")
    read = load_wafer if entry.startswith("wafer") else load_accelerator
    with pytest.raises(AtollError, match=f"{key}.*: expected .*{range_words}"):
        read(path)


@pytest.mark.parametrize(
    ("level", "range_words"),
    [
        ("bandwidth: 1e9 PB/s, latency: 1 us", "1 MB/s and 1 PB/s"),
        ("bandwidth: 50 GB/s, latency: 3 h", "1 ns and 1 s"),
        ("bandwidth: 50 GB/s, latency: 1 us, start: 1000 s", "1 ns and 1 s"),
    ],
)
def test_networks_that_do_not_exist_are_refused_with_the_range(
    level: str, range_words: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nlevels:\n  - {{name: rack, devices: 8, {level}}}\n")
    with pytest.raises(AtollError, match=f"expected .*{range_words}"):
        load_network(path)


@pytest.mark.parametrize(
    ("field", "other", "range_words"),
    [
        ("width: 128", "width: [64, 900000000]", "at most 1000000"),
        ("width: 128", "width: 128\nclock: 9e9 GHz", "1 MHz and 100 GHz"),
        ("glb: [32 MiB, 128 MiB]", "glb: 64 PiB", "128 B and 1 TiB"),
        ("max_area: 280 mm2", "max_area: 1e9 mm2", "10000 um2 and 100000 mm2"),
    ],
)
def test_spaces_of_impossible_chips_are_refused_with_the_range(
    field: str, other: str, range_words: str, tmp_path: Path
) -> None:
    text = (EXAMPLES.parent / "spaces/tiny.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(field, other), encoding="utf-8")
    with pytest.raises(AtollError, match=f"expected .*{range_words}"):
        read_space(path)
