"""Measured training runs as a table: its columns, and each row as a run and a layout.

The schema is that of `published_runs.csv`: one line a run, with model, devices, layout and
measurements; columns that a file has not are taken as empty. What such tables leave unsaid (the
fabric, the software) comes from `data/sources.yaml` by the start of a row's id.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from pydantic import Field

from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.gpu import Gpu, load_gpu
from atoll.training.layout import Layout
from atoll.training.memory import CONTEXT_BYTES, Memory
from atoll.training.run import STATES, Run
from atoll.training.stack import load_stack
from atoll.workload.config import load_config
from atoll.workload.model_config import ModelConfig
from atoll.yamlfile import FileModel, parse_yaml

REQUIRED = ("id", "layers", "hidden", "seq", "device", "devices", "global_batch", "tp", "pp")
TP_PADDING = 128


class SourceFile(FileModel):
    match: str = Field(min_length=1)
    stack: str | None = None
    network: str | None = None
    family: str | None = None
    head_dim: int | None = None
    """Columns of a head where they are not hidden over heads."""
    dropout: float = 0.0
    states: str | None = None
    attention: str | None = None
    before: int | None = None
    """Only rows whose id ends in a job number below this."""
    recompute: str | None = None
    """Only rows with this policy."""
    precision: str | None = None
    """Only rows in this number format."""
    zero: int | None = None
    """Only rows with this ZeRO stage."""
    device: str | None = None
    """Only rows on devices whose name starts so."""
    loss_bytes: float | None = None
    """Bytes per logit at the loss's peak, where the source's loss is not its stack's."""
    memory: str = "allocated"
    """What a source's peak counts: allocated, reserved (blocks held back too), or device (the
    driver's share too)."""
    slack: float = 1.0
    """The site's own factor on the stack's slack."""


class SourcesFile(FileModel):
    sources: list[SourceFile]


@lru_cache(maxsize=1)
def _sources() -> tuple[SourceFile, ...]:
    text = (files("atoll") / "data" / "sources.yaml").read_text(encoding="utf-8")
    return tuple(parse_yaml(text, SourcesFile, "sources.yaml").sources)


@dataclass(frozen=True)
class RunRow:
    """One measured run."""

    line: int
    id: str
    source: str
    device: str
    quality: str
    values: Mapping[str, str]

    def number(self, name: str, default: float = math.nan) -> float:
        text = self.values.get(name, "").strip()
        if not text:
            return default
        try:
            return float(text)
        except ValueError:
            raise AtollError(
                f"line {self.line} ({self.id}): {name} is {text!r}, expected a number"
            ) from None

    def whole(self, name: str, default: int = 1) -> int:
        value = self.number(name, default)
        return default if math.isnan(value) else round(value)

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    @property
    def time_s(self) -> float | None:
        """Measured step time, from tokens per second where it is not given itself."""
        value = self.number("measured_iter_time_s")
        if not math.isnan(value) and value > 0:
            return value
        rate = self.number("measured_tokens_per_s_per_device")
        if math.isnan(rate) or rate <= 0:
            return None
        return self.whole("global_batch") * self.whole("seq") / rate / self.whole("devices")

    @property
    def peak_bytes(self) -> float | None:
        value = self.number("measured_peak_mem_GB")
        return None if math.isnan(value) or value <= 0 else value * 1e9


def read_runs(path: str | Path) -> tuple[RunRow, ...]:
    """The file's rows; a file without the schema's columns is refused."""
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            missing = [name for name in REQUIRED if name not in header]
            if missing:
                raise AtollError(f"{path}: the columns {', '.join(missing)} are missing")
            rows = list(reader)
    except FileNotFoundError:
        raise AtollError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AtollError(f"{path}: cannot be read as CSV ({error})") from None
    return tuple(
        RunRow(
            line=number,
            id=(row.get("id") or "").strip(),
            source=(row.get("source") or "").strip(),
            device=(row.get("device") or "").strip(),
            quality=(row.get("quality") or "").strip(),
            values={k: v or "" for k, v in row.items() if k is not None},
        )
        for number, row in enumerate(rows, start=2)
    )


def run_of(row: RunRow) -> tuple[Run, Layout]:
    """The run and the layout that a row describes; what cannot be expressed is refused."""
    facts = next((s for s in _sources() if _matches(s, row)), SourceFile(match=row.id))
    gpu = device_of(row)
    zero = row.whole("zero_stage", 1)
    if row.whole("fsdp", 0) and zero < 2:
        zero = 3
    stack_name = facts.stack or ("fsdp" if zero == 3 else "megatron")
    stack = load_stack(stack_name)
    stack = replace(
        stack,
        slack=stack.slack * facts.slack,
        loss_bytes=stack.loss_bytes if facts.loss_bytes is None else facts.loss_bytes,
    )
    precision = row.text("precision", "bf16")
    if precision not in ("bf16", "fp16", "fp8"):
        raise AtollError(f"precision {precision} is not modelled")
    half = gpu.half_dtype if precision in ("bf16", "fp16") else precision
    network = load_network(facts.network or gpu.network)
    devices = row.whole("devices")
    tp, pp, cp = row.whole("tp"), row.whole("pp"), row.whole("cp")
    ep, vpp = row.whole("ep"), row.whole("vpp")
    dp = row.whole("dp", devices // (tp * pp * cp))
    schedule = _schedule(row, vpp)
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        microbatch=row.whole("micro_batch"),
        sp=bool(row.whole("sp", 0)),
        zero=zero,
        recompute=_recompute(row),
        schedule=schedule,
    )
    states = STATES[facts.states] if facts.states else STATES["mixed" if zero < 3 else "mixed16"]
    unfused = row.text("flash_attention") in ("0", "0.0")
    attention = "unfused" if unfused else facts.attention or "flash"
    run = Run(
        model=model_of(row, facts.family, facts.dropout, facts.head_dim),
        gpu=gpu,
        network=network,
        devices=devices,
        sequence=row.whole("seq"),
        global_batch=row.whole("global_batch"),
        stack=stack,
        states=states,
        precision=half,
        attention=attention,
    )
    return run, layout


def peak_of(row: RunRow, memory: Memory) -> float:
    """The prediction of what a row's peak counts."""
    facts = next((s for s in _sources() if _matches(s, row)), SourceFile(match=row.id))
    if facts.memory == "reserved":
        return memory.reserved
    if facts.memory == "device":
        return memory.reserved + CONTEXT_BYTES
    return memory.allocated


def _matches(source: SourceFile, row: RunRow) -> bool:
    if not row.id.startswith(source.match):
        return False
    if source.recompute is not None and row.text("recompute", "none") != source.recompute:
        return False
    if source.precision is not None and row.text("precision", "bf16") != source.precision:
        return False
    if source.zero is not None and row.whole("zero_stage", -1) != source.zero:
        return False
    if source.device is not None and not row.device.startswith(source.device):
        return False
    if source.before is None:
        return True
    job = row.id.rpartition("-")[2]
    return job.isdigit() and int(job) < source.before


def _schedule(row: RunRow, vpp: int) -> str:
    given = row.text("schedule").lower()
    if given in ("zb-1p", "zb-h1"):
        return "zb-h1"
    if given in ("zb-2p", "zb-h2"):
        return "zb-h2"
    if given == "gpipe":
        return "gpipe"
    return "interleaved" if vpp > 1 else "1f1b"


def _recompute(row: RunRow) -> str:
    given = row.text("recompute", "none")
    if given == "selective" and row.id.startswith("titan"):
        return "alternate"
    if given not in ("none", "selective", "full", "alternate"):
        raise AtollError(f"recompute {given!r} is not modelled")
    return given


_DEVICES = {
    "A100-SXM": ("a100-40", "a100-80", 60),
    "V100-SXM2": ("v100-16", "v100", 24),
    "V100-SXM3": ("v100-16", "v100", 24),
}
_PLAIN = {
    "H100-SXM": "h100",
    "H100-SXM-96GB-HBM2e": "h100-96",
    "H200-SXM": "h200",
    "B200-SXM": "b200",
    "GB200": "gb200",
    "TPU-v4": "tpu-v4",
    "TPU-v5e": "tpu-v5e",
    "TPU-v5p": "tpu-v5p",
    "TPU-v6e": "tpu-v6e",
    "Trainium1 NeuronCore-v2 (half chip)": "trainium1-core",
}


def device_of(row: RunRow) -> Gpu:
    """The catalogue's device for a table's name of it."""
    if row.device in _DEVICES:
        small, large, limit = _DEVICES[row.device]
        return _gpu(small if row.number("device_mem_GB", 80) < limit else large)
    if row.device in _PLAIN:
        return _gpu(_PLAIN[row.device])
    raise AtollError(f"device {row.device!r} is not in the catalogue")


@lru_cache(maxsize=32)
def _gpu(name: str) -> Gpu:
    return load_gpu(name)


def model_of(
    row: RunRow, family: str | None, dropout: float, head_dim: int | None = None
) -> ModelConfig:
    """A transformer of the row's shape: gated ones like Llama, others like GPT."""
    hidden, layers, sequence = row.whole("hidden"), row.whole("layers"), row.whole("seq")
    heads = row.whole("heads", max(1, hidden // 128))
    gated = bool(row.whole("mlp_gated", 0))
    experts = row.whole("n_experts", 0)
    plain = family == "mpt"
    config = ModelConfig(
        name=row.text("model", row.id),
        family="llama" if gated else "gpt",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=row.whole("kv_heads", heads),
        head_dim=head_dim or hidden // heads,
        ffn=row.whole("ffn", 4 * hidden),
        vocab=row.whole("vocab", 51200),
        max_sequence=sequence,
        position_rows=sequence,
        gated=gated,
        activation="silu" if gated else "gelu",
        norm="rmsnorm" if gated else "layernorm",
        positions="rotary" if gated else ("alibi" if family == "bloom" else "learned"),
        tied_embeddings=not gated,
        attention_bias=not gated and not plain,
        output_bias=not gated and not plain,
        mlp_bias=not gated and not plain,
        dropout=dropout,
        attention_dropout=dropout,
        embedding_dropout=dropout,
        embedding_norm=family == "bloom",
        experts=experts,
        experts_per_token=row.whole("top_k", 0) if experts else 0,
    )
    return _deepseek(config) if "deepseek" in config.name.lower() else config


def _deepseek(config: ModelConfig) -> ModelConfig:
    """A DeepSeek model, perhaps with fewer layers: what tables leave out is in its configuration.

    A truncated model keeps one dense layer.
    """
    full = load_config("deepseek-v3" if config.experts == 256 else "deepseek-v2")
    dense = full.dense_layers if config.layers >= full.layers else (0,)
    return replace(
        full,
        name=config.name,
        layers=config.layers,
        dense_layers=dense,
        vocab=config.vocab,
        max_sequence=max(config.max_sequence, full.max_sequence),
    )
