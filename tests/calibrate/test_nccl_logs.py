"""Logs of nccl-tests: bus bandwidth and latency, held against the catalogue's network."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.calibration.nccl import read_log
from atoll.fabric.nested import collective_s
from atoll.hardware.catalog import load_network

SIZES = [8 * 4**i for i in range(15)]  # 8 B to 2 GiB
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def log(kind: str, ranks: int, per_node: int, share: float, *, named: bool = True) -> str:
    """What the catalogue's DGX A100 would log at a share of its bandwidth."""
    network = load_network("dgx-a100").faster(share)
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 2147483648 step: 4(factor) iters: 20", "#"]
    if named:
        lines.append(f"# Collective test starting: {kind}_perf")
    lines += ["# Using devices"]
    for rank in range(ranks):
        host = f"node{rank // per_node:02d}"
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on {host} device {rank % per_node:2d} "
            "[0000:07:00] NVIDIA A100-SXM4-80GB"
        )
    lines += [
        "#                                                out-of-place                 in-place",
        "#       size    count   type  redop  root   time  algbw  busbw #wrong  time  algbw  busbw "
        "#wrong",
    ]
    operation = "none" if kind == "all_gather" else "sum"
    for size in SIZES:
        time_s = collective_s(network, kind, size, ranks)
        bus = size / time_s * PASSES[kind] * (ranks - 1) / ranks / 1e9
        cells = f"{time_s * 1e6:.2f} {size / time_s / 1e9:.2f} {bus:.2f} 0"
        lines.append(f"{size:12d} {size // 4:10d} float {operation:>6} -1 {cells} {cells}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 41.2", ""])


@pytest.mark.parametrize("kind", list(PASSES))
@pytest.mark.parametrize("named", [True, False])
def test_a_log_gives_back_what_made_it(tmp_path: Path, kind: str, named: bool) -> None:
    path = tmp_path / "test.log"
    path.write_text(log(kind, 8, 8, 0.8, named=named))
    found = read_log(path)
    assert (found.kind, found.ranks, found.nodes, found.level) == (kind, 8, 1, "inside")
    bandwidth, latency = found.ratios_to(load_network("dgx-a100"))
    assert bandwidth is not None and bandwidth[1] == pytest.approx(0.8, rel=0.01)
    assert latency is not None and latency[1] == pytest.approx(1.0, rel=0.05)
    assert latency[0] <= latency[1] <= latency[2]


def test_several_nodes_tell_of_the_links_between_them(tmp_path: Path) -> None:
    path = tmp_path / "test.log"
    path.write_text(log("all_reduce", 32, 8, 0.5))
    found = read_log(path)
    assert (found.ranks, found.nodes, found.level) == (32, 4, "between")
    bandwidth, _ = found.ratios_to(load_network("dgx-a100"))
    assert bandwidth is not None and bandwidth[1] == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a log of nccl-tests"),
        ("step 1 loss 2.0 time_s 0.15\n" * 5, "not a log of nccl-tests"),
        ("  1024 256 float sum -1 20.1 0.05 0.09 0 20.0 0.05 0.09 0\n", "names 0 ranks"),
        (log("all_reduce", 8, 8, 1.0).replace("all_reduce_perf", "hypercube_perf"), "hypercube"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "test.log"
    path.write_text(text)
    with pytest.raises(AtollError, match=says):
        read_log(path)
    with pytest.raises(AtollError, match="no such file"):
        read_log(tmp_path / "none.log")


def test_errors_in_a_table_are_left_out(tmp_path: Path) -> None:
    text = log("all_reduce", 8, 8, 1.0)
    path = tmp_path / "test.log"
    path.write_text(text + "  4096 1024 float sum -1 N/A N/A N/A 0 nan 0.1 0.1 0\n")
    assert len(read_log(path).sizes) == 2 * len(SIZES)
