"""Megatron-LM: arguments of its training programs, in launch scripts and YAML files.

Names, defaults and meanings: megatron/training/arguments.py and the configuration classes of
megatron-core 0.17; older spellings as its earlier releases have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.step.layout import FULL_BLOCKS, HOST
from atoll.tools.arguments import (
    Launch,
    LaunchArguments,
    UserValues,
    flatten,
    load_names,
    switched_on,
)
from atoll.tools.files.shell import Script
from atoll.tools.files.shell_tokens import UNKNOWN
from atoll.tools.files.variables import (
    MARK,
    decides_only,
    expanded,
    guarded_words,
    marked_names,
    marked_words,
    open_variables,
)
from atoll.tools.megatron_lm.core import SHARDING, fsdp_warning
from atoll.tools.megatron_lm.read_model import build_model

NAMES = load_names("megatron_lm")
WORLD = ("nnodes", "nproc_per_node", "num_nodes", "num_gpus")
PROGRAMS = re.compile(r"(pretrain|train|finetune|run)\w*\.py$")
FSDP = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")
MEGATRON_ARGUMENTS = {"num_layers", "hidden_size", "micro_batch_size", "tensor_model_parallel_size",
       "encoder_num_layers", "hybrid_layer_pattern"}  # fmt: skip
"""Arguments that only programs of Megatron-LM have."""


def training_commands(script: Script) -> list[tuple[str, ...]]:
    """Return the commands that start a training program of Megatron-LM."""
    programs = [words for words in script.commands if any(map(PROGRAMS.search, words))]
    return [words for words in programs if MEGATRON_ARGUMENTS & named_arguments(words).keys()]


def read_megatron(file: str, script: Script, user: UserValues) -> Launch:
    """Read the last training command of a script."""
    *earlier, words = training_commands(script)
    at = next(i for i, word in enumerate(words) if PROGRAMS.search(word))
    launcher, program = named_arguments(words[:at]), named_arguments(words[at + 1 :])
    args = LaunchArguments(file, program, UNKNOWN, user.vocab, script.unset)
    launch = build_launch(args, _process_count(launcher))
    stated = (word.partition("=")[0] for word in words[at + 1 :] if word.startswith("-"))
    spelled = {word.lstrip("-").replace("-", "_"): word for word in stated}
    # Of the launcher's arguments only the number of processes affects a step.
    counts = {n: str(launcher[n]) for n in WORLD if launcher.get(n)}
    ignored = {n: str(v or "") for n, v in launcher.items() if n not in counts and n not in program}
    account = launch.arguments
    notes = (f"starts training {len(earlier) + 1} times; the last is read",) if earlier else ()
    variables = open_variables(Path(file), script, user)
    marked = marked_words(Path(file), user, [*variables], lambda s: training_commands(s)[-1])
    reached = {*marked_names(marked), *(name for name, _ in guarded_words(marked)[1])}
    carried = {
        spelled.get(name, name): value
        for name, value in _with_variables(launch.carried, marked, variables).items()
    }
    notes = (*script.notes, *launch.notes, *notes)
    read = {name: value if name in reached else None for name, value in variables.items()
            if name in reached or (value and not decides_only(Path(file), name))}  # fmt: skip
    return replace(launch, notes=notes, carried=carried, variables=read, arguments=replace(
        account, used={**counts, **account.used},
        without_effect={n: v.replace(UNKNOWN, "?") for n, v in ignored.items()}
        | dict(account.without_effect),
    ))  # fmt: skip


def _with_variables(
    carried: Mapping[str, Any], marked: Sequence[str], values: Mapping[str, str]
) -> dict[str, Any]:
    """Return arguments with marks in place of the script's variables, and under "$NAME" variables
    that hold whole arguments, under "$NAME:+" words that stand where a variable is not empty.
    `marked`: words of the command, with marks.
    """
    at = next((i for i, word in enumerate(marked) if PROGRAMS.search(word)), len(marked))
    words, result = [], dict(carried)

    def carries(arguments: Mapping[str, Any]) -> bool:
        words_by_name = {n: expanded(v, values) for n, v in arguments.items()}
        return all(n in result and _words_of(result[n]) == w for n, w in words_by_name.items())

    outside, guarded = guarded_words(marked[at + 1 :])
    for guard, inside in guarded:
        inner = named_arguments(inside)
        if inner and carries(inner):
            result = {name: value for name, value in result.items() if name not in inner}
            result[f"${guard}:+"] = [*result.get(f"${guard}:+", []), *inside]
        else:
            outside += inside
    for word in outside:
        mark = MARK.fullmatch(word)
        if not (mark and not mark[2] and values[mark[1]].startswith("-")):
            words.append(word)
            continue
        inner = named_arguments(values[mark[1]].split())
        if carries(inner):
            result = {name: value for name, value in result.items() if name not in inner}
            result[f"${mark[1]}"] = True
    for name, value in named_arguments(words).items():
        if marked_names(value) and carries({name: value}):
            result[name] = value
    return result


def _words_of(value: Any) -> list[str]:
    """Return the words of an argument's value; of a switch none."""
    if value is None or value is True:
        return []
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def read_megatron_values(file: str, content: Mapping[str, Any], user: UserValues) -> Launch:
    """Read MODEL_ARGS of a YAML file of Megatron-LM's tests; switches are true or false."""
    values = {str(n).lstrip("-").replace("-", "_"): v for n, v in content["MODEL_ARGS"].items()}
    off = {n: "false" for n, v in values.items() if v is False}
    chosen = {n: None if v is True else v for n, v in values.items() if n not in off}
    others = {n: str(v) for n, v in flatten(content) if not n.startswith("MODEL_ARGS.")}
    args = LaunchArguments(file, chosen, UNKNOWN, user.vocab, ignored=off | others)
    return build_launch(args, None)


def named_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments by name; of repeated ones the last."""
    values: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, inline = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            values[name] = inline if equals else None
        elif name and not (word == UNKNOWN and values[name] is not None):
            # (A variable that is not set adds nothing to an argument that has its value.)
            previous = values[name]
            extended = [*(previous if isinstance(previous, list) else [previous]), word]
            values[name] = word if previous is None else extended
    return values


def _process_count(launcher: Mapping[str, Any]) -> int | None:
    """Return the processes that torchrun or DeepSpeed's launcher starts, None if not stated."""
    try:
        nodes = int(launcher.get("nnodes") or launcher.get("num_nodes") or 1)
        per_node = launcher.get("nproc_per_node") or launcher.get("num_gpus")
        return nodes * int(per_node) if per_node else None
    except (TypeError, ValueError):
        return None


def build_launch(args: LaunchArguments, world: int | None) -> Launch:
    """Build the launch from the program's arguments."""
    args.refuse_programs(NAMES)
    model = build_model(args)
    devices = args.count("world_size") or world
    fields = {
        "sequence": args.count("seq_length", "encoder_seq_length") or model.max_sequence,
        **layout_fields(args, model.layers),
        **_precision(args),
    }
    described = {*args.used, "train_iters", "world_size"}
    fields |= software_fields(args)
    ranks = fields["tp"] * fields["pp"] * fields["cp"]
    schedule = args.text("step_batch_size_schedule") or ""  # growing, "0:768 250B:1536"
    last = schedule.split()[-1].rpartition(":")[2] if schedule.strip() else ""
    grown, batch = int(last) if last.isdigit() else None, args.count("global_batch_size")
    if grown and batch and grown != batch:
        raise AtollError(f"{args.file}: says two batches, {batch} and in the end {grown}")
    batch = batch or grown
    if batch is None and devices is not None:
        batch = fields["microbatch"] * max(1, devices // ranks)
    fields |= {"devices": devices, "batch": batch}
    steps, samples = args.count("train_iters"), args.count("train_samples")
    if samples and batch:
        steps = -(-samples // batch)
    warning = fsdp_warning(fields["zero"], fields["tp"] * fields["cp"])
    notes = (f"megatron-core runs this layout, but {warning}",) if warning else ()
    carried, account = args.carried(described, NAMES), args.account(NAMES)
    return Launch(args.file, "megatron-lm", model, fields, steps, account, notes, carried)


def layout_fields(args: LaunchArguments, layers: int) -> dict[str, Any]:
    """Return the layout's question fields from megatron-core's arguments."""
    fields = NAMES.read(args, "layout", "expert_layout", "replicas", "batch")
    pp = fields["pp"]
    if pp == 1:
        args.has("no_pipeline_parallel")
    chunks = args.count(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"
    )
    layers_per_chunk = args.count("num_layers_per_virtual_pipeline_stage")
    if chunks is None and layers_per_chunk:
        chunks = max(1, layers // pp // layers_per_chunk)
    written_layout = args.text("pipeline_model_parallel_layout")
    chunk_blocks = _parse_blocks(written_layout or "")
    if written_layout is not None and chunks is None:
        chunks = max(1, len(chunk_blocks) // pp)
    is_complete = pp > 1 and sum(chunk_blocks) == layers and len(chunk_blocks) == pp * (chunks or 1)
    return fields | {
        "vpp": chunks if chunks and pp > 1 else 1,
        "sp": args.has("sequence_parallel") and fields["tp"] > 1,
        "zero": _zero(args),
        "recompute": _recompute(args),
        "blocks": chunk_blocks if is_complete else (),
    }


def _parse_blocks(layout: str) -> tuple[int, ...]:
    """Return the blocks per chunk of a layout in megatron-core's notation: "Et*3|(tt|)*29,m|L"."""
    text = layout.replace(" ", "").replace(",", "").strip("\"'")
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * min(int(match[2]), 4096) + text[match.end() :]
        if len(text) > 100_000:
            raise AtollError("pipeline_model_parallel_layout: has too many stages")
    chunks = (re.findall(r"t(?:\*(\d+))?", chunk) for chunk in text.split("|"))
    return tuple(sum(int(times or 1) for times in repeats) for repeats in chunks)


def _zero(args: LaunchArguments) -> int:
    strategy = args.text("data_parallel_sharding_strategy")
    fsdp = args.has(*FSDP)
    optimizer = args.has("use_distributed_optimizer")
    stage = args.count("zero_stage")  # DeepSpeed's, which its JSON repeats
    if args.has("optimizer_cpu_offload") and args.number("optimizer_offload_fraction") != 0:
        args.refuse_offload("optimizer_cpu_offload")
    if args.has("deepspeed"):
        args.has("deepspeed_config")
        args.refuse_offload("cpu_optimizer")
        return stage or 0
    if fsdp:
        return SHARDING.index(strategy) if strategy in SHARDING else 3
    return 1 if optimizer else 0


def _recompute(args: LaunchArguments) -> str:
    granularity = args.text("recompute_granularity")
    if args.has("recompute_activations"):
        granularity = granularity or "selective"
    if args.has("checkpoint_activations"):
        args.has("deepspeed_activation_checkpointing")
        granularity = "full"
    method, layers = args.text("recompute_method"), args.count("recompute_num_layers")
    modules = (args.text("recompute_modules") or "core_attn").replace(",", " ").split()
    if args.has("moe_layer_recompute") and "moe" not in modules:  # its older name
        granularity, modules = granularity or "selective", [*modules, "moe"]
    if granularity is None:
        offloaded_layers = args.count("cpu_offloading_num_layers")
        return f"{HOST}@{offloaded_layers}" if offloaded_layers else "none"
    if granularity == "full":
        return f"{FULL_BLOCKS}{layers}" if method == "block" and layers else "full"
    return "selective" if modules == ["core_attn"] else "+".join(modules)


def _precision(args: LaunchArguments) -> dict[str, Any]:
    fp8 = args.text("fp8_format", "fp8")
    recipe = args.values.get("fp8_recipe")
    fp4 = args.text("fp4_format", "fp4")
    args.text("fp4_recipe")
    fp16, bf16 = args.has("fp16"), args.has("bf16")
    if fp16 and bf16:
        raise AtollError(f"{args.file}: says both --fp16 and --bf16")
    if fp8 is not None and fp4 is not None:
        raise AtollError(f"{args.file}: says both 8-bit and 4-bit products")
    precision = "fp16" if fp16 else "bf16" if bf16 else None
    if fp4 is not None:
        precision = "nvfp4"
    elif fp8 is not None or args.has("fp8_hybrid", "fp8_e4m3"):
        precision = "mxfp8" if recipe == "mxfp8" else "fp8"
    if precision is None:
        raise AtollError(
            f"{args.file}: trains in fp32 (neither --bf16 nor --fp16), which is not modelled"
        )
    wide = args.has("accumulate_allreduce_grads_in_fp32")
    narrow = args.has("grad_reduce_in_bf16") or (precision == "fp16" and not wide)
    return {"precision": precision, "optimizer": "mixed16" if narrow else "mixed"}


def software_fields(args: LaunchArguments) -> dict[str, Any]:
    """Return the attention kernel, flags and overlaps."""
    backend = args.text("attention_backend")
    unfused = backend == "unfused" or args.has("no_flash_attn")
    args.has("use_flash_attn")
    fused = args.has("cross_entropy_loss_fusion")
    deferred = args.has("defer_embedding_wgrad_compute")
    limit = args.count("wgrad_deferral_limit") or 0
    flags = {
        "local": args.text("transformer_impl") == "local",
        "fp8_params": args.has("fp8_param_gather", "fp8_param"),
        "fp8_act": args.has("activation_func_fp8_input_store"),
        "te_loss": fused and args.text("cross_entropy_fusion_impl") == "te",
        # (FSDP demands it, and adds gradients where it scatters them.)
        "no_grad_fusion": args.has("no_gradient_accumulation_fusion") and not args.has(*FSDP),
        f"head_wgrad={limit}": deferred and limit,
        "cp_p2p": args.values.get("cp_comm_type") == "p2p",
        "cp_a2a": args.values.get("cp_comm_type") == "a2a"
        or "ds_sequence_parallel_size" in args.values,
    }
    if not unfused:  # of a kernel that is not used
        args.has("no_masked_softmax_fusion")
    # DeepEP and HybridEP send an expert's token once per node.
    dispatcher = args.text("moe_token_dispatcher_type") or "allgather"
    backend = args.text("moe_flex_dispatcher_backend") or "deepep"
    if args.has("moe_enable_deepep") or dispatcher == "flex":
        dispatcher = backend
    overlaps = {
        "grad_reduce": (reduced := args.has("overlap_grad_reduce")),
        "no_grad_reduce": not reduced,
        "param_gather": args.has("overlap_param_gather"),
        "tp_comm": args.has("tp_comm_overlap"),
        "p2p": not args.has("no_overlap_p2p_communication")
        or args.has("overlap_p2p_communication"),
        "ep_a2a": args.has("overlap_moe_expert_parallel_comm"),
        f"dispatcher={dispatcher}": "num_experts" in args.values,
    }
    graphs = args.has("enable_cuda_graph", "external_cuda_graph")
    scope = args.text("cuda_graph_scope", "cuda_graph_impl")
    return {
        "attention": "unfused" if unfused else "flash",
        "overlap": switched_on(overlaps),
        "flags": switched_on(flags),
        "cuda_graphs": scope or ("layer" if graphs else None),
    }
