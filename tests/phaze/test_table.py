"""Reading layer tables: what is accepted, and the sentence for everything that is not."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from atoll.base.errors import AtollError
from atoll.phaze.layer_table import LayerEdge, LayerNode, parse_table, read_table

CASES = Path(__file__).parents[1] / "data" / "phaze_dp_cases"


def node(id: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": id,
        "parameterSize": 10.5,
        "activationSize": 20,
        "optimalLatencyFw": 0.1,
        "optimalLatencyBw": 0.2,
        "isTensorParallelized": True,
        **changes,
    }


def edge(source: int, target: int) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "communicationCost": 5}


VALID: dict[str, Any] = {
    "maxMemoryPerDevice": 1000,
    "maxDevices": 8,
    "bandwidth": 10.0,
    "mbsInBatch": 4.0,
    "nodes": {"4": [node(-1), node(0), node(1)]},
    "edges": {"4": [edge(-1, 0), edge(0, 1)]},
    "activationRecomputation": False,
    "optimizerAlgorithm": "SGD",
}


def changed(path: list[str | int], value: Any) -> dict[str, Any]:
    data = deepcopy(VALID)
    inner: Any = data
    for step in path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


def error_of(data: Any) -> str:
    with pytest.raises(AtollError) as caught:
        parse_table(data if isinstance(data, str) else json.dumps(data), "my.json")
    message = str(caught.value)
    assert message.startswith("my.json: ")
    assert "\n" not in message
    return message


def test_a_table_is_read_into_si_units() -> None:
    table = parse_table(json.dumps(VALID))
    assert (table.devices, table.memory_bytes, table.bandwidth_Bps) == (8, 1000.0, 10.0)
    assert (table.microbatches, table.recompute, table.optimizer) == (4, False, "SGD")
    graph = table.widths[4]
    assert graph.nodes[0] == LayerNode(-1, 10.5, 20.0, 0.1, 0.2, True)
    assert graph.edges == (LayerEdge(-1, 0, 5.0), LayerEdge(0, 1, 5.0))


def test_every_shipped_case_is_read() -> None:
    paths = sorted(CASES.glob("*.in.json"))
    assert len(paths) == 13
    for path in paths:
        table = read_table(path)
        assert table.source == str(path)
        assert (
            list(table.widths)
            == json.loads(path.with_name(path.name.replace(".in.", ".out.")).read_text())["meta"][
                "widths"
            ]
        )


@pytest.mark.parametrize(("given", "microbatches"), [(4096.0, 4096), (2.9, 2), (1, 1)])
def test_microbatches_are_truncated_as_the_reference_does(given: float, microbatches: int) -> None:
    assert parse_table(json.dumps(changed(["mbsInBatch"], given))).microbatches == microbatches


def test_baseline_fields_and_extra_fields_are_ignored() -> None:
    data = VALID | {"fixedPP": 3, "fixedTMPC": "x", "numTransformerLayers": None}
    data["nodes"] = {"4": [node(i, energy=1.0) for i in (-1, 0, 1)]}
    assert parse_table(json.dumps(data)) == parse_table(json.dumps(VALID))


def test_widths_are_sorted_as_numbers() -> None:
    data = deepcopy(VALID)
    for key in ("nodes", "edges"):
        data[key] = dict.fromkeys(("16", "2", "4"), VALID[key]["4"])
    assert list(parse_table(json.dumps(data)).widths) == [2, 4, 16]


FAULTS: list[tuple[list[str | int], Any, str]] = [
    (["maxDevices"], ..., r"maxDevices: required field is missing"),
    (["maxDevices"], 0, r"maxDevices: expected at least 1, got 0"),
    (["maxDevices"], 2.5, r"maxDevices: expected a whole number, got 2\.5"),
    (["maxDevices"], True, r"maxDevices: expected a whole number, got True"),
    (["maxDevices"], 10**30, r"maxDevices: expected at most 1000000000, got 10+"),
    (["maxMemoryPerDevice"], -1, r"maxMemoryPerDevice: expected at least 0.*, got -1"),
    (["maxMemoryPerDevice"], float("nan"), r"NaN is no number that is finite"),
    (["bandwidth"], 0, r"bandwidth: expected more than 0.*, got 0"),
    (["bandwidth"], float("inf"), r"Infinity is no number that is finite"),
    (["bandwidth"], "4 GB/s", r"bandwidth: expected a number, got '4 GB/s'"),
    (["mbsInBatch"], 0.5, r"mbsInBatch: expected at least 1.*, got 0\.5"),
    (["mbsInBatch"], ..., r"mbsInBatch: required field is missing"),
    (["activationRecomputation"], 1, r"activationRecomputation: expected true or false, got 1"),
    (["optimizerAlgorithm"], "Lion", r"optimizerAlgorithm: expected 'SGD' or 'Adam', got 'Lion'"),
    (["optimizerAlgorithm"], ["SGD"], r"optimizerAlgorithm: expected 'SGD' or 'Adam', got \["),
    (["nodes"], [], r"nodes: expected a mapping of fields, got \[\]"),
    (["nodes"], {}, r"nodes: expected at least 1 item\(s\), got \{\}"),
    (["nodes", "4"], [], r"nodes\.4: expected at least 1 item\(s\), got \[\]"),
    (["nodes", "4"], {}, r"nodes\.4: expected a list, got \{\}"),
    (["nodes", "4", 1], 7, r"nodes\.4\.1: expected a mapping of fields, got 7"),
    (["nodes", "4", 2, "id"], 0, r"nodes\.4\.2\.id: 0 is there twice"),
    (["nodes", "4", 2, "id"], "a", r"nodes\.4\.2\.id: expected a whole number, got 'a'"),
    (["nodes", "4", 2, "parameterSize"], -5, r"nodes\.4\.2\.parameterSize: .* at least 0"),
    (["nodes", "4", 0, "activationSize"], 10**400, r"a whole number of 401 digits"),
    (["nodes", "4", 1, "optimalLatencyFw"], ..., r"nodes\.4\.1\.optimalLatencyFw: required"),
    (["nodes", "4", 1, "optimalLatencyBw"], None, r"optimalLatencyBw: expected a number, got None"),
    (["nodes", "4", 0, "isTensorParallelized"], "yes", r"expected true or false, got 'yes'"),
    (["edges"], ..., r"edges: required field is missing"),
    (["edges", "4"], ..., r"width 4: expected both nodes and edges"),
    (["edges", "8"], [], r"width 8: expected both nodes and edges"),
    (["edges", "4", 0], None, r"edges\.4\.0: expected a mapping of fields, got None"),
    (["edges", "4", 1, "destId"], 9, r"edges\.4\.1: 9 is no id of a layer of nodes\.4"),
    (["edges", "4", 1, "communicationCost"], -1, r"edges\.4\.1\.communicationCost: expected at"),
    (["edges", "4", 1], edge(0, -1), r"edges\.4 form the cycle (-1 -> 0 -> -1|0 -> -1 -> 0);"),
    (["edges", "4", 1], edge(1, 1), r"edges\.4 form the cycle 1 -> 1; a layer graph must have"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), FAULTS)
def test_a_fault_is_one_sentence_with_field_value_and_remedy(
    path: list[str | int], value: Any, sentence: str
) -> None:
    assert re.search(sentence, error_of(changed(path, value)))


@pytest.mark.parametrize("width", ["0", "-2", "2.0", "two", "", "04", "9" * 30])
def test_a_width_is_a_positive_whole_number(width: str) -> None:
    data = VALID | {"nodes": {width: VALID["nodes"]["4"]}, "edges": {width: VALID["edges"]["4"]}}
    assert re.search(r"nodes: expected widths from 1 to 1000000000, got ", error_of(data))


def test_a_cycle_behind_sorted_layers_is_named_without_them() -> None:
    data = deepcopy(VALID)
    data["nodes"]["4"] = [node(i) for i in range(5)]
    data["edges"]["4"] = [edge(0, 1), edge(1, 2), edge(2, 3), edge(3, 1), edge(3, 4)]
    cycle = re.search(r"the cycle (.*);", error_of(data))
    assert cycle is not None
    assert cycle[1] in ("1 -> 2 -> 3 -> 1", "2 -> 3 -> 1 -> 2", "3 -> 1 -> 2 -> 3")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"not valid JSON at line 1, column 1"),
        (json.dumps(VALID, indent=1)[:300], r"not valid JSON at line \d+, column \d+"),
        ("[1, 2]", r"expected a JSON object, found a list"),
        ('{"bandwidth": 1, "bandwidth": 2}', r"the field bandwidth is given twice"),
        ("[" * 100_000, r"not usable JSON"),
        ('{"bandwidth": ' + "9" * 5000 + "}", r"not usable JSON"),
    ],
)
def test_text_that_is_no_table(text: str, sentence: str) -> None:
    assert re.search(sentence, error_of(text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"absent\.json: no such file"):
        read_table(tmp_path / "absent.json")
    with pytest.raises(AtollError, match=r"cannot be read \(Is a directory\)"):
        read_table(tmp_path)
    (tmp_path / "binary.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(AtollError, match=r"binary\.json: not UTF-8 text \(byte 7\)"):
        read_table(tmp_path / "binary.json")
