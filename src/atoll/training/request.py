"""Runs and layouts from questions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Unpack

from atoll.answers.answer import build_from
from atoll.base.errors import AtollError
from atoll.base.registry import import_named
from atoll.hardware.catalog import load_network
from atoll.hardware.device import Device, load_device
from atoll.questions import LayoutQuestion, PlanQuestion, RunQuestion
from atoll.questions.devices import LengthQuestion
from atoll.step.layout import Layout
from atoll.step.length import MTBF_S, RESTART_S, RunLength
from atoll.step.states import load_states
from atoll.tools.arguments import Launch
from atoll.tools.registry import find_tool, stack_words, tool_of_stack, usual_tool
from atoll.tools.software import software
from atoll.tools.stack import CHIP, STACKS, XLA, with_adapters
from atoll.tools.tool import Tool
from atoll.training.operators.layers import expert_count
from atoll.training.planner.space import Axes
from atoll.training.run import Run, TimingSource
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

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # tp values tried on captured models
AXES = {a.name: "order" if a.name == "schedule" else a.name for a in fields(Axes) if a.name != "sp"}
"""Axes of a plan, and the question field of each."""


def make_run(model: str, device: str, devices: int, **settings: Unpack[RunFields]) -> Run:
    """Create a run from names: model, device and network of the catalogue or files."""
    question = RunQuestion.of(model=model, device=device, devices=devices, **settings)
    return run_from_question(question)


def run_from_question(
    question: RunQuestion, model: ModelConfig | None = None, launch: Launch | None = None
) -> Run:
    """Create the run of a question; `model` and `launch` count where it names none."""
    if question.from_ is not None:
        launch = import_named("atoll.launch.ask:launched")(question.from_, question.asked())
    if model is None and launch is not None and not question.model:
        model = launch.model
    named_model = model or load_model(question.model)
    config = stand_in(named_model) if isinstance(named_model, StoredModel) else named_model
    if question.dropout is not None:
        rate = question.dropout
        config = replace(config, dropout=rate, attention_dropout=rate, embedding_dropout=rate)
    if question.imbalance > 1 and not config.experts:
        raise AtollError(
            f"imbalance: has no effect, as {config.name} has no experts; leave imbalance out"
        )
    gpu = load_device(question.device)
    if question.power_cap is not None:
        gpu = gpu.capped(question.power_cap)
    length = config.sequence if question.sequence is None else question.sequence
    if config.positions == "learned" and length > config.max_sequence:
        end = f"its position table ends at {config.max_sequence}"
        raise AtollError(f"{config.name}: sequence is {length}, but {end}")
    precision = question.precision or gpu.half_dtype
    gpu.peak_flops(precision)
    load_site = import_named("atoll.training.site:load_site")  # on demand
    site: Site | None = load_site(question.site) if question.site else None
    stored = named_model if isinstance(named_model, StoredModel) else None
    tool = _tool(question, gpu, site, None if stored else config, precision)
    usual = {} if compiles_itself(gpu) else _tool_settings(question, tool, site, precision)
    stack = software(
        usual.get("stack") or question.stack or (site and site.stack) or gpu.stack,
        usual.get("overlap", question.overlap),
        question.cuda_graphs,
        f"{usual.get('flags', '')} {question.flags or ''}",
    )
    asked = question.attention if "attention" in question.asked() else None
    attention = asked or (site and site.attention) or usual.get("attention", question.attention)
    adapters = None
    if question.method == "lora":
        if isinstance(named_model, StoredModel):
            raise AtollError(f"{named_model.name} was captured: all of its weights are trained")
        adapters = Adapters(question.lora_rank, targets_named(question.lora_targets))
        stack = with_adapters(stack)
    run = Run(
        model=config,
        gpu=gpu,
        network=load_network(question.network or gpu.network),
        network_assumed=question.network is None,
        devices=question.devices,
        sequence=length,
        global_batch=question.batch,
        stack=stack,
        states=load_states(usual.get("optimizer", question.optimizer)),
        precision=precision,
        attention=attention,
        imbalance=question.imbalance,
        adapters=adapters,
        timed=_timed(gpu, precision) if question.operators == "measured" else None,
        fine_tuned=question.method != "pretrain",
        stored=stored,
        tool=tool,
        headroom=question.headroom,
        length=_length(question),
        question=question,
        launch=launch,
    )
    return run if site is None else run.at(site)


def compiles_itself(device: Device) -> bool:
    """Return whether a device compiles a step into one program, independent of launch tools."""
    return device.stack in (CHIP.name, XLA.name)


def _tool(
    question: RunQuestion, gpu: Device, site: Site | None, model: ModelConfig | None, precision: str
) -> Tool:
    """Return the tool that the question names, or a usual one for device, model and method."""
    software_words = question.stack or (site and site.stack)
    if question.tool is not None:
        return find_tool(question.tool)
    if software_words and not compiles_itself(gpu):
        return tool_of_stack(software_words)
    values = {axis: getattr(question, field, None) for axis, field in AXES.items()}
    asked = {
        axis: value if isinstance(value, tuple) else (value,)
        for axis, value in values.items()
        if value and AXES[axis] in question.asked()
    }
    return usual_tool(gpu.stack, model, question.method, precision, asked)


def _tool_settings(
    question: RunQuestion, tool: Tool, site: Site | None, precision: str
) -> dict[str, str]:
    """Return the tool's settings, which its launch file has, for fields left open."""
    usual = tool.runs_as(precision, question.method)
    answered = question.asked()
    if question.tool is not None and (words := stack_words(question.tool)):
        usual["stack"] = words
    if site is not None and site.stack:
        answered["stack"] = "the site's"
    # Flags add to the tool's own, which are those of its stack.
    answered["flags"] = answered.get("stack")
    return {name: value for name, value in usual.items() if answered.get(name) is None}


def _timed(gpu: Device, precision: str) -> TimingSource:
    """Return the installed timings, or raise an error that says why there are none."""
    import_named("atoll.calibration.timed_tables:timings")(gpu.name, precision)
    return TimingSource(import_named("atoll.calibration.timed_tables:package_version")())


def _length(question: LengthQuestion) -> RunLength | None:
    if question.tokens is None:
        return None
    mtbf_s, restart_s = question.mtbf or MTBF_S, question.restart or RESTART_S
    return RunLength(question.tokens, question.price, mtbf_s, question.checkpoint, restart_s)


def stand_in(stored: StoredModel) -> ModelConfig:
    """Return a configuration with a captured model's blocks, and the tp that divides it."""
    width = max(widths(stored, WIDTHS))
    built = prepare(stored, stored.file.microbatch or 1, fusion="none")
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


def make_layout(run: Run, **settings: Unpack[LayoutFields]) -> Layout:
    """Create a layout; dp defaults to the devices that the other axes leave."""
    return layout_from_question(run, LayoutQuestion.of(**settings))


def layout_from_question(run: Run, question: LayoutQuestion) -> Layout:
    """Create the layout of a question."""
    tp, pp, cp = question.tp, question.pp, question.cp
    ranks = tp * pp * cp
    if question.dp is None and run.devices % ranks:
        raise AtollError(
            f"devices {run.devices} is not a multiple of tp {tp} x pp {pp} x cp {cp} = {ranks}"
        )
    if run.stored is not None and (cp > 1 or (question.sp and tp > 1)):
        raise AtollError(
            f"{run.model.name} was captured with whole sequences: cp must be 1 and sequence "
            "parallelism off"
        )
    if run.stored is not None and question.etp not in (None, tp):
        raise AtollError(f"{run.model.name} was captured: its experts have the tensor width tp")
    divided = (run.sequence // cp) % tp == 0 and run.stored is None
    dp = question.dp or run.devices // ranks
    zero = run.tool.usual_zero(dp * cp) if question.zero is None else question.zero
    return build_from(
        Layout,
        question,
        dp=dp,
        etp=question.etp or tp,
        sp=tp > 1 and (divided if question.sp is None else question.sp),
        zero=zero,
        recompute=run.tool.policy(question.recompute),
        schedule=question.order or ("interleaved" if question.vpp > 1 else "1f1b"),
    )


def _check_orders(run: Run, orders: Iterable[str]) -> None:
    """Raise an error for pipeline orders that the run's software does not support."""
    runs = run.stack.orders
    for order in orders:
        if order not in runs:
            stacks = [n for n in STACKS if n != CHIP.name and order in STACKS[n].orders]
            raise AtollError(
                f"order {order}: {run.stack.name} does not run it; choose one of {', '.join(runs)},"
                f" or a stack that does: {', '.join(stacks)}"
            )


def axes_from_question(question: PlanQuestion, run: Run) -> Axes:
    """Return the values that a plan tries: all that the tool runs where the question says none."""
    _check_orders(run, question.order or ())
    chosen = {axis: values for axis, field in AXES.items() if (values := getattr(question, field))}
    if question.recompute:
        chosen["recompute"] = tuple(map(run.tool.policy, question.recompute))
    return Axes(**dict(run.tool.axes) | chosen)
