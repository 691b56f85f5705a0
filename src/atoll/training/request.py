"""From a user's words to a run and a layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Unpack

from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.device import Device, load_device
from atoll.questions import LayoutQuestion, PlanQuestion, RunQuestion
from atoll.questions.devices import FilesQuestion, LengthQuestion
from atoll.registry import named
from atoll.step.layout import Layout
from atoll.step.length import MTBF_S, RESTART_S, RunLength
from atoll.step.states import load_states
from atoll.training.operators.layers import expert_count
from atoll.training.planner.space import Axes
from atoll.training.run import Run, Timed
from atoll.training.software import software
from atoll.training.stack import CHIP, STACKS, XLA, with_adapters
from atoll.workload.adapters import Adapters, targets_named
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.graph.layer import block_names
from atoll.workload.load import load_model
from atoll.workload.prepare import prepare
from atoll.workload.shard import widths
from atoll.workload.stored import StoredModel

if TYPE_CHECKING:
    from atoll.questions.keywords import LayoutFields, RunFields
    from atoll.training.site import Site

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # of tensor parallelism, tried on captured models
AXES = {a.name: "order" if a.name == "schedule" else a.name for a in fields(Axes) if a.name != "sp"}
"""Of a plan, and the fields of its question."""


def make_run(model: str, device: str, devices: int, **given: Unpack[RunFields]) -> Run:
    """A run by names: the model of the zoo or a file, the device and its network likewise."""
    return run_of(RunQuestion.of(model=model, device=device, devices=devices, **given))


def run_of(asked: RunQuestion, model: ModelConfig | None = None) -> Run:
    """The run that a question is about; of a model in hand, where it has no name."""
    given = model or _model(asked)
    config = stand_in(given) if isinstance(given, StoredModel) else given
    if asked.dropout is not None:
        config = replace(
            config,
            dropout=asked.dropout,
            attention_dropout=asked.dropout,
            embedding_dropout=asked.dropout,
        )
    if asked.imbalance > 1 and not config.experts:
        raise AtollError(
            f"imbalance: has no effect, as {config.name} has no experts; leave imbalance out"
        )
    gpu = load_device(asked.device)
    if asked.power_cap is not None:
        gpu = gpu.capped(asked.power_cap)
    length = config.sequence if asked.sequence is None else asked.sequence
    if config.positions == "learned" and length > config.max_sequence:
        raise AtollError(
            f"{config.name}: sequence is {length}, but its position table ends at "
            f"{config.max_sequence}"
        )
    precision = asked.precision or gpu.half_dtype
    gpu.peak_flops(precision)
    site = _site(asked)
    attention = asked.attention if "attention" in asked.asked() else None
    usual = fields_of_its_tool(asked)
    stack = software(
        usual.get("stack") or asked.stack or (site and site.stack) or gpu.stack,
        usual.get("overlap", asked.overlap),
        asked.cuda_graphs,
        asked.flags,
    )
    adapters = None
    if asked.method == "lora":
        if isinstance(given, StoredModel):
            raise AtollError(f"{given.name} was captured: all of its weights are trained")
        adapters = Adapters(asked.lora_rank, targets_named(asked.lora_targets))
        stack = with_adapters(stack)
    run = Run(
        model=config,
        gpu=gpu,
        network=load_network(asked.network or gpu.network),
        devices=asked.devices,
        sequence=length,
        global_batch=asked.batch,
        stack=stack,
        states=load_states(usual.get("optimizer", asked.optimizer)),
        precision=precision,
        attention=attention or (site and site.attention) or asked.attention,
        imbalance=asked.imbalance,
        adapters=adapters,
        timed=_timed(gpu, precision) if asked.operators == "measured" else None,
        fine_tuned=asked.method != "pretrain",
        stored=given if isinstance(given, StoredModel) else None,
        headroom=asked.headroom,
        length=_length(asked),
        question=asked,
    )
    return run if site is None else run.at(site)


def _site(asked: RunQuestion) -> Site | None:
    """Imported where there is one."""
    if not asked.site:
        return None
    from atoll.training.site import load_site

    return load_site(asked.site)


def _model(asked: RunQuestion) -> ModelConfig | StoredModel:
    """The model by its name; where none is given, the one that the launch file describes."""
    if asked.from_ is None or asked.model:
        return load_model(asked.model)
    found: ModelConfig = named("atoll.launch.ask:launched")(asked.from_, asked.asked()).model
    return found


def compiles_itself(device: Device) -> bool:
    """Whether a device has one program for a whole step, whatever tool's words a layout is in."""
    return device.stack in (CHIP.name, XLA.name)


def fields_of_its_tool(asked: RunQuestion) -> dict[str, str]:
    """Of a question with a launch file: how the tool runs it, where nothing is said of that, so
    that the file takes what the answer says.
    """
    target, gpu = (
        asked.export if isinstance(asked, FilesQuestion) else None,
        load_device(asked.device),
    )
    if target is None or compiles_itself(gpu):
        return {}
    usual = named("atoll.export:EXPORTERS")[target].runs_as(asked.precision or gpu.half_dtype)
    known = asked.asked()
    if (site := _site(asked)) is not None and site.stack:
        known["stack"] = "the site's"
    return {name: value for name, value in usual.items() if known.get(name) is None}


def _timed(gpu: Device, precision: str) -> Timed:
    """The timings that are installed, or why there are none of this device."""
    named("atoll.calibration.timed_tables:timings")(gpu.name, precision)
    return Timed(named("atoll.calibration.timed_tables:package_version")())


def _length(asked: LengthQuestion) -> RunLength | None:
    if asked.tokens is None:
        return None
    return RunLength(
        asked.tokens,
        asked.price,
        asked.mtbf or MTBF_S,
        asked.checkpoint,
        asked.restart or RESTART_S,
    )


def stand_in(stored: StoredModel) -> ModelConfig:
    """What layouts ask of a captured model: its blocks, and the widths that divide its tensors."""
    width = max(widths(stored, WIDTHS))
    microbatch = stored.file.microbatch or 1
    built = prepare(stored, microbatch, fusion="none")
    blocks = block_names(built)
    return ModelConfig(
        name=stored.name,
        family="captured",
        hidden=width,
        layers=sum(repeat for layer, repeat in built.layers if layer.name in blocks),
        heads=width,
        kv_heads=width,
        head_dim=1,
        ffn=width,
        vocab=width,
        max_sequence=stored.sequence,
        default_sequence=stored.sequence,
        positions="none",
        tied_embeddings=False,
        causal=False,  # its sequence is not divided
        experts=max(expert_count(layer) for layer, _ in built.layers),
    )


def make_layout(run: Run, **given: Unpack[LayoutFields]) -> Layout:
    """A layout; data parallelism takes the devices that the other axes leave."""
    return layout_of(run, LayoutQuestion.of(**given))


def layout_of(run: Run, asked: LayoutQuestion) -> Layout:
    """The layout of a run that a question is about."""
    tp, pp, cp = asked.tp, asked.pp, asked.cp
    ranks = tp * pp * cp
    if asked.dp is None and run.devices % ranks:
        raise AtollError(
            f"devices {run.devices} is not a multiple of tp {tp} x pp {pp} x cp {cp} = {ranks}"
        )
    if run.stored is not None and (cp > 1 or (asked.sp and tp > 1)):
        raise AtollError(
            f"{run.model.name} was captured with whole sequences: cp must be 1 and sequence "
            "parallelism off"
        )
    if run.stored is not None and asked.etp not in (None, tp):
        raise AtollError(f"{run.model.name} was captured: its experts have the tensor width tp")
    divided = (run.sequence // cp) % tp == 0 and run.stored is None
    return Layout(
        dp=asked.dp or run.devices // ranks,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=asked.ep,
        etp=asked.etp or tp,
        vpp=asked.vpp,
        microbatch=asked.microbatch,
        sp=tp > 1 and (divided if asked.sp is None else asked.sp),
        zero=asked.zero,
        hsdp=asked.hsdp,
        recompute=asked.recompute,
        schedule=asked.order or ("interleaved" if asked.vpp > 1 else "1f1b"),
        blocks=asked.blocks,
    )


def _check_orders(run: Run, orders: Iterable[str]) -> None:
    """Refuse to plan with pipeline orders that the run's software does not run."""
    runs = run.stack.orders
    for order in orders:
        if order not in runs:
            others = [x for x in STACKS if x != CHIP.name and order in STACKS[x].orders]
            raise AtollError(
                f"order {order}: {run.stack.name} does not run it; choose one of {', '.join(runs)},"
                f" or a stack that does: {', '.join(others)}"
            )


def axes_of(asked: PlanQuestion, usual: Mapping[str, tuple[Any, ...]], run: Run) -> Axes:
    """The values that a plan tries: as `usual` on axes of which the question says nothing."""
    _check_orders(run, asked.order or ())
    said = {axis: values for axis, field in AXES.items() if (values := getattr(asked, field))}
    return Axes(**dict(usual) | said)
