"""Questions about existing hardware: what one layout costs, and which layout is best."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from atoll.base.errors import AtollError
from atoll.base.registry import import_named
from atoll.files.atomic_file import FolderPath
from atoll.files.yamlfile import Count
from atoll.questions import fields as f
from atoll.questions.fields import ADVANCED, LAUNCH, LAYOUT, RUN_LENGTH, SYSTEM, TRAINED, Counts
from atoll.questions.question import (
    OUTPUT,
    Dollars,
    Named,
    Price,
    Question,
    Seconds,
    Several,
    Share,
    Tokens,
    locate,
    option,
)
from atoll.questions.sweeps import first_swept

StackName = Annotated[str, Named("atoll.tools.stack:STACKS", "atoll.tools.software:find_stack")]
LoraTargets = Annotated[str, Named(loader="atoll.workload.adapters:targets_named")]
SiteFile = Annotated[str, Named(loader="atoll.training.site:load_site", file=True)]
PodsFile = Annotated[str, Named(loader="atoll.training.mixed.pods:load_pods", file=True)]
ToolName = Annotated[str, Named("atoll.tools.registry:TOOLS", "atoll.tools.registry:find_tool")]

DEPENDENT_FIELDS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("method", "lora", ("lora_rank", "lora_targets")),
    ("tokens", None, ("price", "mtbf", "checkpoint", "restart", "deadline", "budget")),
    ("price", None, ("budget",)),
)
"""(field, value that it needs (None: any), fields that only then have an effect)."""
TIES = 0.01
"""Share of a step: a tenth of the mean error of estimates, and far below the error between two
layouts of one run (data/errors.yaml)."""


class LengthQuestion(Question):
    """How long the whole run is, and what failures and checkpoints cost it."""

    tokens: Tokens | None = option(
        'Tokens of the whole run, "1T" (powers of 1,000): adds days, device-hours and energy.',
        RUN_LENGTH, None,
    )  # fmt: skip
    price: Price | None = option('Dollars per device and hour, "2.5/h".', RUN_LENGTH, None)
    mtbf: Seconds | None = option(
        'Mean time between failures of one device, "50000 h".', RUN_LENGTH, None,
        shown="50,700 h, as for Llama 3",
    )  # fmt: skip
    checkpoint: Seconds | None = option(
        'Time training is paused per checkpoint, "30 s".', RUN_LENGTH, None,
        shown="its bytes at 122 MB/s per device",
    )  # fmt: skip
    restart: Seconds | None = option(
        'Time from a failure to the next step, "10 min".', RUN_LENGTH, None, shown="10 min"
    )


class LaunchQuestion(Question):
    """What a launch file leaves to its surroundings."""

    vocab: Count | None = option(
        "Vocabulary size, if the launch file leaves it to a tokenizer.", LAUNCH, None,
        shown="the file's",
    )  # fmt: skip
    set: Annotated[tuple[str, ...], Several] = option(
        "NAME=VALUE: an environment variable of the launch script.", LAUNCH, (), shown="none"
    )


class RunQuestion(LaunchQuestion, LengthQuestion):
    """A training run on existing hardware, but for its layout."""

    kind: Literal["devices"] = "devices"
    from_: f.FileName | None = option(
        "Launch file that describes the run (see `atoll check`); options override it.",
        LAUNCH, None, shown="none",
    )  # fmt: skip
    model: f.ModelName = option(f.MODEL_HELP, TRAINED, "", shown="the launch file's")
    device: f.Device
    devices: f.Devices
    batch: f.Batch
    batch_tokens: f.BatchTokens = None
    sequence: f.Sequence = None
    network: f.DeviceNetwork = None
    site: SiteFile | None = option(
        "Calibration of your machines, written by `atoll calibrate` (YAML).", SYSTEM, None
    )
    tool: ToolName | None = option(
        "Training tool, optionally @VERSION: plans contain only layouts that it can run; none: any "
        "layout.",
        SYSTEM, None, shown="the usual one for device, model and method",
    )  # fmt: skip
    stack: StackName | None = option(
        "Software whose kernels, overlaps and host times are priced: a stack, or a release "
        "(Megatron-Bridge 26.04). Without --tool, its tool is taken.",
        ADVANCED, None, shown="the tool's",
    )  # fmt: skip
    overlap: str | None = option(
        "Communication that overlaps with compute: tp_comm, grad_reduce (zero_grad_reduce: only "
        "with ZeRO; or no_grad_reduce), p2p, ep_a2a.",
        ADVANCED, None, shown="the stack's",
    )  # fmt: skip
    cuda_graphs: str | None = option(
        "CUDA graphs: 0, full_iteration, layer, or parts of layers (attn).", ADVANCED, None,
        shown="none",
    )  # fmt: skip
    flags: str | None = option(
        "Further choices of the software, with commas (docs/training.md explains them). Attention: "
        "dense_mask, dense_window, math_attention, cp_a2a, cp_p2p. Loss: liger_loss, "
        "compiled_loss, eager_loss, te_loss, loss_chunks=N, loss_columns=N, recompute_loss. "
        "Experts: grouped_mm, masked_experts, sliced_experts. Optimizer: foreach, forloop, "
        "adafactor, clip, host_optimizer. "
        "Adapters: fp32_adapters, cast_adapters, adapter_dropout, nf4, nested_scales. "
        "Precision: fp8_params, bf16_params, fp8_act, autocast, fp32, tf32. Other: traced, liger, "
        "local, plain_modules, flash_modules, reentrant, plain_mixers, no_grad_fusion, "
        "growing_segments, head_wgrad=N.",
        ADVANCED, None, shown="none",
    )  # fmt: skip
    dropout: f.Part | None = option("Dropout probability.", TRAINED, None, shown="the model's")
    optimizer: f.OptimizerName = option(
        "Optimizer states and their precision.", TRAINED, "mixed", old=("states",)
    )
    method: Literal["pretrain", "sft", "lora"] = option(
        "Train all weights (pretrain, sft) or adapters of frozen weights (lora).",
        TRAINED,
        "pretrain",
    )
    lora_rank: Count = option("Rank of the adapters.", TRAINED, 16)
    lora_targets: LoraTargets = option(
        "Projections with adapters: attention, mlp, all, or by name (q_proj+v_proj).", TRAINED,
        "attention",
    )  # fmt: skip
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None = option(
        "Type of matrix products.", SYSTEM, None, shown="the device's"
    )
    attention: Literal["flash", "flex", "flash2", "flash1", "unfused"] = option(
        "Attention kernel.", SYSTEM, "flash", shown="the tool's"
    )
    operators: Literal["model", "measured"] = option(
        "Operator times: modelled, or measured ones of NVIDIA's aiconfigurator-core if it is "
        "installed (interpolated between its sizes, modelled elsewhere).",
        ADVANCED, "model",
    )  # fmt: skip
    imbalance: Annotated[float, Field(ge=1)] = option(
        "Tokens of the busiest expert divided by the mean.", ADVANCED, 1.0
    )
    headroom: f.Headroom = 0.0
    power_cap: f.PowerCap = None
    positional: ClassVar[tuple[str, ...]] = ("model", "device", "devices")

    @classmethod
    def needed(cls, given: Container[str]) -> list[str]:
        needed = ["model", *super().needed(given)]
        if "batch_tokens" in given:
            needed = [name for name in needed if name != "batch"]
        return needed if "from_" not in given else [n for n in needed if n == "device"]

    @model_validator(mode="before")
    @classmethod
    def _apply_launch_file(cls, fields: Any, info: ValidationInfo) -> Any:
        """Fill fields that are not set from the launch file in `from_`."""
        if not isinstance(fields, dict):
            return fields
        if fields.get("from_") is None:
            if orphan := next((n for n in LaunchQuestion.model_fields if fields.get(n)), ""):
                raise AtollError(f"{orphan}: said of a launch file; name it with --from (from_)")
            return fields
        paths = {n: fields[n] for n in ("from_", "device") if isinstance(fields.get(n), str | Path)}
        files = {name: locate(str(value), info) for name, value in paths.items()}
        return import_named("atoll.launch.ask:completed")(cls, {**fields, **files})

    @model_validator(mode="before")
    @classmethod
    def _batch_of_tokens(cls, fields: Any, info: ValidationInfo) -> Any:
        return f.with_batch_of_tokens(fields, info)

    @model_validator(mode="after")
    def _check_dependent_fields(self) -> Self:
        """Refuse fields without effect; a sweep may still set the field that they need."""
        if getattr(self, "sweep", ()):
            return self
        for main_field, value, names in DEPENDENT_FIELDS:
            main_value = getattr(self, main_field, None)
            if main_value is not None if value is None else main_value == value:
                continue
            for name in names:
                field_info = type(self).model_fields.get(name)
                if field_info is not None and getattr(self, name) != field_info.default:
                    flag = f"--{main_field} {value}" if value else f"--{main_field}"
                    raise AtollError(
                        f"{name}: has no effect without {flag}; add it, or leave {name} out"
                    )
        return self


class LayoutQuestion(Question):
    """One layout of a run."""

    tp: Count = option("Tensor parallel degree.", LAYOUT, 1)
    pp: Count = option("Pipeline stages.", LAYOUT, 1)
    cp: Count = option("Context parallel degree.", LAYOUT, 1)
    ep: Count = option("Expert parallel degree.", LAYOUT, 1)
    etp: Count | None = option("Tensor-parallel degree of the experts.", LAYOUT, None, shown="tp")
    dp: Count | None = option("Data parallel degree.", LAYOUT, None, shown="what the others leave")
    vpp: Count = option("Model chunks per stage (interleaving).", LAYOUT, 1)
    microbatch: Count = option("Sequences in a microbatch.", LAYOUT, 1)
    sp: bool | None = option("Sequence parallelism.", LAYOUT, None, shown="where tp is above 1")
    zero: f.ZeroStage | None = option(
        "ZeRO stage; 3: fully sharded.", LAYOUT, None, shown="the tool's usual one"
    )
    hsdp: Count = option("Replicas of the group that ZeRO divides over.", LAYOUT, 1)
    recompute: f.PolicyName = option(
        "What is recomputed in the backward pass: a policy, full@N (of N blocks), full@host (from "
        "inputs in the host's memory), host or host@N (kept there), or modules (mla_up_proj+mlp).",
        LAYOUT, "none",
    )  # fmt: skip
    order: f.OrderName | None = option(
        "Pipeline order.", LAYOUT, None, shown="1f1b or interleaved", old=("schedule",)
    )
    blocks: f.BlockCounts = option(
        'Blocks of every model chunk, in order; "15+17x2+15" is 15,17,17,15.', LAYOUT, (),
        shown="as even as possible",
    )  # fmt: skip


class FilesQuestion(Question):
    """Where answers about devices go."""

    launch_file: Path | None = option(
        "Write the tool's launch file: a file, or a folder (.) for its usual name.", OUTPUT, None,
        writes=True, old=("export_to",), exclude=True,
    )  # fmt: skip
    export: ToolName | None = option(
        "Old form of --tool TOOL --launch-file .; the next release removes it.", ADVANCED, None,
        exclude=True,
    )  # fmt: skip
    sweep: f.Sweep = ()
    out: f.Out = None
    trace: f.Trace = None

    @field_validator("launch_file", mode="wrap")
    @classmethod
    def _keep_slash(cls, value: Any, read: Callable[[Any], Path | None]) -> Path | None:
        """Tell "a/", a folder, from "a"."""
        path = read(value)
        return FolderPath(path) if path and str(value).endswith("/") else path

    @model_validator(mode="before")
    @classmethod
    def _export_as_tool(cls, fields: Any) -> Any:
        """Read `export` of earlier releases as the tool; commands also write its launch file."""
        if not isinstance(fields, dict) or fields.get("export") is None:
            return fields
        if fields.get("tool") not in (None, fields["export"]):
            raise AtollError("export: --tool says the tool already; add --launch-file instead")
        return fields | {"tool": fields["export"]}

    @model_validator(mode="before")
    @classmethod
    def _swept(cls, fields: Any) -> Any:
        """Set swept fields that are required to their first value."""
        return fields | first_swept(cls, fields) if isinstance(fields, dict) else fields


class EstimateQuestion(FilesQuestion, LayoutQuestion, RunQuestion):
    """Estimate step time, MFU and memory of one layout."""

    devices: f.Devices = 1
    batch: f.Batch = 1
    messages: f.Messages = None
    chakra: f.ChakraFolder = None
    example = "atoll estimate --model llama3-70b --device h100 --devices 512 --tp 8 --pp 4"


class PlanQuestion(FilesQuestion, RunQuestion):
    """Find the fastest training layout that fits, with proof."""

    devices: f.Devices = 1
    deadline: Seconds | None = option(
        'Instead of --devices: the fewest (powers of 2) that finish the run in this time, "14d".',
        RUN_LENGTH, None, exclude=True,
    )  # fmt: skip
    budget: Dollars | None = option(
        'Instead of --devices: dollars for the run, "$50k"; without --deadline, all that it buys.',
        RUN_LENGTH, None, exclude=True,
    )  # fmt: skip
    tp: Counts = option("Tensor parallel degrees.", LAYOUT, (), shown="all in a node")
    pp: Counts = option("Pipeline stages.", LAYOUT, (), shown="all divisors")
    cp: Counts = option("Context parallel degrees.", LAYOUT, (), shown="1 to 8")
    ep: Counts = option("Expert parallel degrees.", LAYOUT, (), shown="all divisors")
    etp: Counts = option("Tensor-parallel degrees of the experts.", LAYOUT, (), shown="1, tp")
    vpp: Counts = option("Model chunks per stage.", LAYOUT, (), shown="any")
    microbatch: Counts = option("Sequences in a microbatch.", LAYOUT, (), shown="any")
    zero: f.ZeroStages = option("ZeRO stages.", LAYOUT, (), shown="0, 1, 2, 3")
    hsdp: Counts = option("Replicas of the group that ZeRO divides over.", LAYOUT, (), shown="any")
    recompute: Annotated[tuple[f.RecomputeName, ...], Several] = option(
        "What is recomputed.", LAYOUT, (), shown="none, selective, alternate, full, optimal"
    )
    order: f.OrderNames = option(
        "Pipeline orders; 1f1b includes interleaved.",
        LAYOUT,
        (),
        shown="those of the stack",
        old=("schedule",),
    )
    ties: Share = option(
        "Layouts this close to the fastest count as equal: the simplest that is not tight in "
        "memory is chosen, or a slower one if all are tight. 0: the fastest.",
        ADVANCED, TIES, shown="1%, for chips 0",
    )  # fmt: skip
    risk: Literal["mean", "median", "p75", "p90"] = option(
        "Rank layouts by the mean, the median or a quantile of the expected step time.",
        ADVANCED, "mean", shown="mean; for chips median",
    )  # fmt: skip
    measure: Count | None = option(
        "Measure this many of the best layouts on the local GPU (`atoll measure`), calibrate on "
        "them and plan again, until the best layout stays the same.",
        "Measurements", None, shown="none", exclude=True,
    )  # fmt: skip
    time_limit: f.TimeLimit = 3600.0
    workers: f.Workers = None
    cluster: f.Cluster = None
    out: f.OutFolder = None
    layouts: Path | None = option(
        "Write every estimated layout to this file (CSV).", OUTPUT, None, exclude=True
    )
    example = "atoll plan --model gpt3-175b --device h100 --devices 1024 --batch 2048"
    answer_keys: ClassVar[Mapping[str, str]] = {"time_limit": "time_limit_s"}

    @classmethod
    def needed(cls, given: Container[str]) -> list[str]:
        needed = super().needed(given)
        chosen = "from_" in given or "deadline" in given or "budget" in given
        return needed if chosen else [*needed, "devices"]

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        """Refuse a question without devices, and one that both states and asks for them."""
        stated, asked = "devices" in self.model_fields_set, self.deadline or self.budget
        if not stated and not asked:
            raise ValueError("devices: required field is missing; or give deadline or budget")
        if stated and asked:
            raise ValueError("devices: deadline and budget choose them; leave it out")
        return self


class PodsQuestion(PlanQuestion):
    """The fastest use of pods of different devices: which runs what, proven over the space."""

    kind: Literal["pods"] = "pods"  # type: ignore[assignment]
    pods: PodsFile = option(
        "Cluster of several pods (YAML): devices, networks and the link between them.", SYSTEM
    )
    offered = (
        "model", "pods", "batch", "batch_tokens", "sequence", "stack", "overlap", "cuda_graphs",
        "flags", "dropout", "optimizer", "method", "lora_rank", "lora_targets", "precision",
        "attention", "imbalance", "headroom", "tp", "pp", "cp", "ep", "etp", "vpp", "microbatch",
        "zero", "hsdp", "recompute", "order", "tool", "launch_file", "export", "time_limit",
    )  # fmt: skip
    example = "atoll plan --model llama3-70b --pods pods.yaml --batch 512"

    @classmethod
    def needed(cls, given: Container[str]) -> list[str]:
        return ["model", "pods", *(["batch"] if "batch_tokens" not in given else [])]

    @model_validator(mode="before")
    @classmethod
    def _on_pods(cls, fields: Any, info: ValidationInfo) -> Any:
        """Set `device` and `devices` from the file of pods; refuse fields that pods do not have."""
        if not isinstance(fields, dict) or not isinstance(fields.get("pods"), str | Path):
            return fields
        file = locate(str(fields["pods"]), info)
        pods = import_named("atoll.training.mixed.pods:load_pods")(file).pods
        derived = {"device": pods[0].device, "devices": sum(pod.devices for pod in pods)}
        for name, value in fields.items():
            if name not in (*cls.offered, "kind") and value and value != derived.get(name):
                in_pods_file = name in ("device", "devices", "network", "site")
                why = "the file of pods says it" if in_pods_file else "plans on pods do not have it"
                raise AtollError(f"{name}: {why}; leave it out")
        return {**fields, **derived, "pods": file}
