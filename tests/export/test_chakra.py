"""Execution traces, decoded by the protobuf package under a schema written down here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.export.messages import step_messages
from atoll.training.estimate import Estimate

pool = pytest.importorskip("google.protobuf.descriptor_pool")
from google.protobuf import descriptor_pb2, message_factory  # noqa: E402
from google.protobuf.internal.decoder import _DecodeVarint32  # noqa: E402

TEXT, INT32, INT64, UINT64, BOOL, MESSAGE = 9, 5, 3, 4, 8, 11
FIELDS = {
    "Attribute": [("name", 1, TEXT), ("int32_val", 7, INT32), ("int64_val", 9, INT64),
                  ("bool_val", 27, BOOL), ("string_val", 29, TEXT)],
    "Node": [("id", 1, UINT64), ("name", 2, TEXT), ("type", 3, INT32), ("data_deps", 5, UINT64),
             ("duration_micros", 7, UINT64), ("attr", 10, MESSAGE)],
    "Metadata": [("version", 1, TEXT)],
}  # fmt: skip
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
KINDS = {0: "all_reduce", 2: "all_gather", 6: "all_to_all", 7: "reduce_scatter"}


def schema() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, listed in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in listed:
            several = field in ("data_deps", "attr")
            made = message.field.add(
                name=field, number=number, type=kind, label=3 if several else 1
            )
            if kind == MESSAGE:
                made.type_name = ".et.Attribute"
    found = pool.DescriptorPool()
    found.Add(file)
    get = found.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(get(f"et.{name}")) for name in FIELDS}


def read(path: Path) -> list[Any]:
    kinds, data, at, nodes = schema(), path.read_bytes(), 0, []
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        kind = kinds["Node" if nodes else "Metadata"]
        nodes.append(kind.FromString(data[at : at + size]))
        at += size
    assert nodes[0].version
    return nodes[1:]


def said(node: Any) -> dict[str, Any]:
    names = ("int32_val", "int64_val", "bool_val", "string_val")
    return {a.name: next((v for n in names if (v := getattr(a, n))), 0) for a in node.attr}


def written(folder: Path, **layout: Any) -> tuple[Estimate, list[list[Any]]]:
    given = {"batch": 8, "stack": "megatron", **layout}
    found = atoll.estimate("llama3-8b", "h100", 8, sequence=2048, chakra=folder, **given)
    assert isinstance(found, Estimate)
    return found, [read(folder / f"step.{rank}.et") for rank in range(8)]


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "pp": 2},
        {"tp": 2, "cp": 2, "zero": 0},
        {"pp": 4, "vpp": 2},
        {"zero": 2},
        {"zero": 3, "recompute": "full"},
        {"pp": 2, "order": "zb-h1"},
    ],
    ids=str,
)
def test_every_collective_of_the_step_is_a_node(layout: dict[str, Any], tmp_path: Path) -> None:
    found, files = written(tmp_path, **layout)
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    per_stage = 8 // found.layout.pp
    for stage in range(found.layout.pp):
        rank = stage * per_stage
        got = Counter[tuple[str, int, int]]()
        for node in files[rank]:
            if node.type == COLLECTIVE:
                told = said(node)
                ranks = groups[told["pg_name"]]
                assert rank in ranks
                got[KINDS[told["comm_type"]], len(ranks), told["comm_size"]] += 1
        wanted = Counter[tuple[str, int, int]]()
        for one in step_messages(found):
            if one.stage == stage and one.kind != "send":
                wanted[one.kind, one.ranks, round(one.bytes)] += round(one.count)
        assert got == wanted


def test_what_one_device_sends_another_receives(tmp_path: Path) -> None:
    _, files = written(tmp_path, tp=2, pp=2, cp=2)
    ends = {kind: Counter[tuple[int, ...]]() for kind in (SEND, RECEIVE)}
    for rank, nodes in enumerate(files):
        for node in nodes:
            if node.type in ends:
                told = said(node)
                ends[node.type][
                    tuple(told[n] for n in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                ] += 1
                assert rank == told["comm_src" if node.type == SEND else "comm_dst"]
    assert ends[SEND] == ends[RECEIVE] and ends[SEND]


def test_dependencies_go_back_and_times_add_up(tmp_path: Path) -> None:
    found, files = written(tmp_path, tp=2, pp=2)
    for nodes in files:
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert all(dep < node.id for node in nodes for dep in node.data_deps)
    computing = sum(n.duration_micros for n in files[0] if n.type == COMPUTE) * 1e-6
    stage = found.stages[0]
    passes_s = stage.forward.compute_s + stage.backward.compute_s + stage.recompute.compute_s
    m = found.layout.microbatches(8)
    assert computing == pytest.approx(m * passes_s + found.step.optimizer_s, rel=0.01)


def test_more_than_a_simulator_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="nodes on 4,096 devices"):
        atoll.estimate("gpt3-175b", "h100", 4096, batch=8192, tp=8, pp=8, chakra=tmp_path)
    assert not list(tmp_path.iterdir())
