"""Powers of whole nodes: devices under load, their host, fans and supplies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.answers.validation import NodesValidation
from atoll.api import validate
from atoll.hardware.physical.device_power import H200_FIT, NodeLoad, node_W

ONE = NodeLoad(8, 8, 700.0, fixed_batch=False, at_wall=False, in_liquid=True)
# MLPerf Training 4.0 and 5.0: means of the published power logs
NODES = """id,device,devices,workload,measured_W,scope,notes
a,H100-SXM,8,Llama-2-70B LoRA fp8,6948,"node DC side (after PSU), mean","immersion-cooled, no fans"
b,B200-SXM,8,BERT-large,9784,"node AC (wall), mean over the run",
c,H100-SXM,many,BERT-large,9784,"node AC (wall), mean over the run",
"""


def test_a_node_is_its_devices_at_the_cap_and_its_host() -> None:
    assert node_W(ONE) == pytest.approx(8 * 0.985 * 700 + H200_FIT.host_W)


def test_fans_and_supplies_add_and_waiting_takes_away() -> None:
    alone = node_W(ONE)
    assert node_W(replace(ONE, in_liquid=False)) == pytest.approx(alone * 1.05)
    assert node_W(replace(ONE, at_wall=True)) == pytest.approx(alone / 0.97)
    powers = [node_W(replace(ONE, devices=n, fixed_batch=True)) for n in (8, 64, 512)]
    assert powers[0] == alone
    assert powers == sorted(powers, reverse=True)
    # MLPerf 4.0, Llama-2 70B LoRA on 1, 8 and 64 immersed nodes
    assert powers == pytest.approx([6741, 5847, 4745], rel=0.05)


def test_a_file_of_nodes_is_judged(tmp_path: Path) -> None:
    data, out = tmp_path / "nodes.csv", tmp_path / "lines.csv"
    data.write_text(NODES)
    answer = validate(data, out=out)
    assert isinstance(answer, NodesValidation)
    assert answer.rows == 3 and answer.predicted == 2
    assert answer.power.mean_ape is not None and answer.power.mean_ape < 0.1
    assert [node.device for node in answer.nodes] == ["h100", "b200"]
    assert out.read_text().startswith("id,device,devices,workload,measured_W,predicted_W,error")
