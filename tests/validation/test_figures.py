"""Tables of single figures: measured powers and clocks, and what is published of process nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.answers.validation import FiguresValidation
from atoll.api import validate
from atoll.cli import app
from atoll.hardware.physical.nodes import RETICLE_MM2

# MLPerf Training 4.0 (SMC); BNL, arXiv:2506.14551; telemetry of an A100; rocm-smi of an idle MI300X
POWERS = """\
id,device,scope,workload,power_limit_W,avg_power_W,idle_W,clock_MHz,measured,note
typical,8x H100 SXM HGX node,node,training,,7750,,,yes,
lora-8,8 x 8 H100 SXM,"node DC (no fans, immersion)",Llama2-70B LoRA,,5847,,,yes,
products,A100 SXM4 40GB,GPU,large prefill GEMMs,400.0,403-410,,1305-1335,yes,
vector,A100 SXM4 40GB,GPU,GEMV (memory bound),400.0,,,1410,yes,
idle,MI300X,chip/board,idle,,,191,,yes,
share,A100,telemetry,prefill,,75-100% TDP,20% TDP,,yes,
peak,8x H100 SXM HGX node,node AC,gpu-burn,,,,,yes,most 8480 W
rated,A100 80GB,GPU,BLOOM 176B,,400,,,no: GPU-h x 0.4 kW (TDP),
unknown,SambaNova SN30,PDU,idle,,,40% TDP,,yes,
words,A100 80GB,GPU,GEMM,,at or above TDP,,,yes,
"""
# WikiChip, IEDM 2014, DAC 2022, ASML
PROCESSES = """\
node_nm,foundry,category,item,value,unit
7,TSMC N7,logic_density,peak library density,91.2,MTr/mm2
16,TSMC,sram,HD 6T bit cell,0.074,um2
7,TSMC N7,sram,large-macro density,24.7,Mb/mm2
5,TSMC,relative_energy,energy per op at iso-speed vs N7,0.7,x
5,TSMC,wafer_price,price per 300 mm wafer,16988,USD
7,TSMC,defect_density,D0,0.09,1/cm2
,,reticle,field,26 x 33 = 858,mm2
DRAM,,energy_wire,on-chip wire per bit per mm,0.2,pJ/bit/mm
2,TSMC,voltage,nominal Vdd,0.7,V
45,generic,energy_op,fp16 mult,1.1,pJ
7,TSMC N7,sram,CMEM,>=9.6,Mb/mm2
"""


def read(tmp_path: Path, text: str, *, option: str = "data") -> FiguresValidation:
    path = tmp_path / "table.csv"
    path.write_text(text)
    found = validate(path) if option == "data" else validate(chips=path)
    assert isinstance(found, FiguresValidation)
    return found


def test_measured_powers_are_held_against_the_models_of_devices_and_nodes(tmp_path: Path) -> None:
    found = read(tmp_path, POWERS)
    lines = {(line.id, line.unit): line for line in found.figures}
    assert lines["lora-8", "W"].predicted == pytest.approx(5637, abs=1)
    assert lines["typical", "W"].error == pytest.approx(-0.07, abs=0.005)
    assert lines["products", "W"].reference == 406.5
    assert lines["products", "W"].predicted == pytest.approx(0.985 * 400)
    assert lines["products", "MHz"].reference == 1320 and abs(lines["products", "MHz"].error) < 0.03
    assert lines["vector", "MHz"].predicted == pytest.approx(1410)
    assert lines["idle", "W"].predicted == pytest.approx(0.11 * 750)
    assert lines["share", "W"].reference == pytest.approx(0.2 * 400)
    assert found.rows == 10 and found.predicted == 6 and sum(found.skipped.values()) == 4
    assert "expected a number or a range, got 'at or above TDP'" in found.skipped
    assert set(found.groups) == {
        "mean power of a node", "power of a device under load", "clock under a limit",
        "idle power of a device",
    }  # fmt: skip


def test_facts_of_processes_are_held_against_the_physical_model(tmp_path: Path) -> None:
    found = read(tmp_path, PROCESSES)
    assert (found.rows, found.predicted) == (11, 7)
    by_group = {line.group: line for line in found.figures}
    assert by_group["reticle (mm2)"].reference == by_group["reticle (mm2)"].predicted == RETICLE_MM2
    assert by_group["wafer price (USD)"].error == pytest.approx(16000 / 16988 - 1)
    exact = ("logic density (MTr/mm2)", "relative energy (x)", "defect density (1/cm2)")
    assert all(by_group[group].error == pytest.approx(0, abs=1e-9) for group in exact)
    assert "energy_op in pJ: not compared with the physical model" in found.skipped
    assert "node_nm: the model has 3 to 28 nm" in found.skipped
    assert "expected a number or a range, got '>=9.6'" in found.skipped


def test_a_table_beside_the_chips_may_be_given_as_chips(tmp_path: Path) -> None:
    assert read(tmp_path, PROCESSES, option="chips") == read(tmp_path, PROCESSES)


def test_figures_are_printed_and_written(tmp_path: Path) -> None:
    table, out = tmp_path / "powers.csv", tmp_path / "lines.csv"
    table.write_text(POWERS)
    shown = CliRunner().invoke(app, ["validate", "--data", str(table), "--out", str(out)])
    assert shown.exit_code == 0 and "6 of 10 rows predicted" in shown.stdout
    assert out.read_text().startswith("id,group,unit,reference,predicted,error\ntypical,mean power")
