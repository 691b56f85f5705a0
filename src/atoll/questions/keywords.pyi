# Written by tests/questions/written.py from the questions.
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from atoll.explore.proof.objective import Aim
from atoll.explore.strategies import Strategy
from atoll.export.plan import Exporter
from atoll.hardware.template.cores import CostModel
from atoll.hardware.template.template import ChipTemplate
from atoll.profile import Profile
from atoll.training.stack import Stack

class CalibrateFields(TypedDict, total=False):
    trace: str | Path | None
    nccl_tests: Sequence[str | Path] | str | Path | None
    device: str | None
    out: str | Path | None

class CheckFields(TypedDict, total=False):
    device: str | None
    devices: int | None
    model: str | None
    vocab: int | None
    batch: int | None
    sequence: int | None
    network: str | None
    stack: str | None
    set: Sequence[str] | str | None
    log: str | Path | None
    trace: str | Path | None
    append: str | Path | None
    strict: bool | None
    least: float | str | None
    steps: int | None
    time_limit: float | str | None
    price: float | str | None

class EstimateFields(TypedDict, total=False):
    batch: int | None
    sequence: int | None
    network: str | None
    site: str | None
    stack: str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: str | None
    method: str | None
    lora_rank: int | None
    lora_targets: str | None
    precision: str | None
    attention: str | None
    imbalance: float | str | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    microbatch: int | None
    sp: bool | None
    zero: int | None
    hsdp: int | None
    recompute: str | None
    order: str | None
    export: str | Exporter | None
    export_to: str | Path | None
    out: str | Path | None
    trace: str | Path | None
    wafer: str | None
    mapping: str | None

class LayoutFields(TypedDict, total=False):
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    vpp: int | None
    microbatch: int | None
    sp: bool | None
    zero: int | None
    hsdp: int | None
    recompute: str | None
    order: str | None

class ModelsFields(TypedDict, total=False):
    microbatch: int | None
    sequence: int | None
    tp: int | None

class PlaceFields(TypedDict, total=False):
    profile: str | Profile | None

class PlanFields(TypedDict, total=False):
    batch: int | None
    sequence: int | None
    network: str | None
    site: str | None
    stack: str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: str | None
    method: str | None
    lora_rank: int | None
    lora_targets: str | None
    precision: str | None
    attention: str | None
    imbalance: float | str | None
    export: str | Exporter | None
    export_to: str | Path | None
    out: str | Path | None
    trace: str | Path | None
    tp: Sequence[int] | int | None
    pp: Sequence[int] | int | None
    cp: Sequence[int] | int | None
    ep: Sequence[int] | int | None
    etp: Sequence[int] | int | None
    vpp: Sequence[int] | int | None
    microbatch: Sequence[int] | int | None
    zero: Sequence[int] | int | None
    hsdp: Sequence[int] | int | None
    recompute: Sequence[str] | str | None
    order: Sequence[str] | str | None
    time_limit: float | str | None
    workers: int | None
    cluster: str | None

class RunFields(TypedDict, total=False):
    batch: int | None
    sequence: int | None
    network: str | None
    site: str | None
    stack: str | Stack | None
    overlap: str | None
    cuda_graphs: str | None
    flags: str | None
    dropout: float | str | None
    optimizer: str | None
    method: str | None
    lora_rank: int | None
    lora_targets: str | None
    precision: str | None
    attention: str | None
    imbalance: float | str | None

class SearchFields(TypedDict, total=False):
    model: Sequence[str | Mapping[str, Any]] | str | Mapping[str, Any] | None
    devices: int | None
    batch: int | None
    sequence: int | None
    optimizer: str | None
    objective: str | Aim | None
    microbatch: Sequence[int] | int | None
    tp: Sequence[int] | int | None
    cp: Sequence[int] | int | None
    ep: Sequence[int] | int | None
    etp: Sequence[int] | int | None
    vpp: Sequence[int] | int | None
    sp: bool | None
    zero: Sequence[int] | int | None
    order: Sequence[str] | str | None
    recompute: str | None
    space: str | None
    template: str | ChipTemplate | None
    hbm: Sequence[int] | int | None
    max_area: float | str | None
    max_power: float | str | None
    network: str | None
    profile: str | Profile | None
    cost_model: str | CostModel | None
    strategy: str | Strategy | None
    evaluations: int | None
    tolerance: float | str | None
    time_limit: float | str | None
    pareto: bool | None
    baselines: bool | None
    beside: Sequence[str] | str | None
    seed: int | None
    workers: int | None
    cluster: str | None
    out: str | Path | None
    trace: str | Path | None
    wafer: str | None
    stage_shapes: Any
    stage_counts: Sequence[int] | int | None
    mapping: str | None
    layout: Any
    ablations: Sequence[str] | str | None
    dead_dies: Any
    dead_links: Any
    dead_share: float | str | None
    samples: int | None
    explain: bool | None

class ValidateFields(TypedDict, total=False):
    device: str | None
    expect: str | None
    site: str | None
    out: str | Path | None
