"""Megatron-LM: the arguments of its training programs, and what a launch script makes of them.

Names, defaults and what they mean: megatron/training/arguments.py and the configuration classes of
megatron-core 0.17; older spellings as its earlier releases have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.launch.account import Arguments, Launch, flat, words_of
from atoll.launch.files.shell import Command, Script
from atoll.launch.files.words import UNKNOWN
from atoll.launch.megatron_model import model_of
from atoll.step.layout import HOST, SOME

WORDS = words_of("megatron")
WORLD = ("nnodes", "nproc_per_node", "num_nodes", "num_gpus")
PROGRAMS = re.compile(r"(pretrain|train|finetune|run)\w*\.py$")
FSDP = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")
OWN = {"num_layers", "hidden_size", "micro_batch_size", "tensor_model_parallel_size",
       "encoder_num_layers", "hybrid_layer_pattern"}  # fmt: skip
"""Arguments that programs of Megatron-LM have, and others do not."""


def training_commands(script: Script) -> list[Command]:
    """Commands that start a training program of Megatron-LM."""
    return [c for c in script.commands if any(PROGRAMS.search(w) for w in c.words)
            and OWN & named_arguments(c.words).keys()]  # fmt: skip


def read_megatron(file: str, script: Script, vocab: int | None = None) -> Launch:
    """The last training command of a script."""
    *others, command = training_commands(script)
    words = command.words
    at = next(i for i, word in enumerate(words) if PROGRAMS.search(word))
    launcher, own = named_arguments(words[:at]), named_arguments(words[at + 1 :])
    given = Arguments(file, own, UNKNOWN, vocab, script.unset)
    found = launch_of(given, _world(launcher))
    # What starts the processes: their number, and nothing else that a step would feel.
    counted = {n: str(launcher[n]) for n in WORLD if launcher.get(n)}
    beside = {n: str(v or "") for n, v in launcher.items() if n not in counted and n not in own}
    said = found.arguments
    notes = (f"starts training {len(others) + 1} times; the last is read",) if others else ()
    return replace(found, notes=(*script.notes, *notes), arguments=replace(
        said, used={**counted, **said.used},
        without_effect={n: v.replace(UNKNOWN, "?") for n, v in beside.items()}
        | dict(said.without_effect),
    ))  # fmt: skip


def read_megatron_values(file: str, content: Mapping[str, Any], vocab: int | None = None) -> Launch:
    """Arguments under MODEL_ARGS, as tests of Megatron-LM write them: switches are true or false,
    and what stands under ENV_VARS tunes libraries.
    """
    said: dict[str, Any] = {}
    off: dict[str, Any] = {}
    for name, value in content["MODEL_ARGS"].items():
        own = str(name).lstrip("-").replace("-", "_")
        (off if value is False else said)[own] = None if value is True else value
    found = launch_of(Arguments(file, said, UNKNOWN, vocab), None)
    around = {name: str(value) for name, value in flat(content)
              if not name.startswith("MODEL_ARGS.")}  # fmt: skip
    unsaid = dict(found.arguments.without_effect) | dict.fromkeys(off, "false") | around
    return replace(found, arguments=replace(found.arguments, without_effect=unsaid))


def is_megatron_values(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("MODEL_ARGS"), Mapping)


def named_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments by name; of one given twice the last."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else None
        elif name and not (word == UNKNOWN and found[name] is not None):
            # (A variable that is not set adds nothing to an argument that has its value.)
            before = found[name]
            both = [*(before if isinstance(before, list) else [before]), word]
            found[name] = word if before is None else both
    return found


def _world(launcher: Mapping[str, Any]) -> int | None:
    """Processes that a launcher starts (torchrun's words, or DeepSpeed's), where it says so."""
    try:
        nodes = int(launcher.get("nnodes") or launcher.get("num_nodes") or 1)
        each = launcher.get("nproc_per_node") or launcher.get("num_gpus")
        return nodes * int(each) if each else None
    except (TypeError, ValueError):
        return None


def launch_of(given: Arguments, world: int | None) -> Launch:
    """What the arguments say."""
    what, found = given.one_of(WORDS.trains_else)
    if what:
        raise AtollError(
            f"{given.file}: trains a model of {what} (--{found.replace('_', '-')}); only "
            "decoders of texts are modelled"
        )
    what, found = given.one_of(WORDS.no_training)
    if what:
        raise AtollError(f"{given.file}: {what} (--{found.replace('_', '-')}): not modelled")
    model = model_of(given)
    devices = given.count("world_size") or world
    fields = {
        "sequence": given.count("seq_length", "encoder_seq_length") or model.max_sequence,
        **layout_fields(given, model.layers),
        **_precision(given),
        **software_fields(given),
    }
    if devices is not None:
        fields["devices"] = devices
    ranks = fields["tp"] * fields["pp"] * fields["cp"]
    grown, batch = _last_batch(given), given.count("global_batch_size")
    if grown and batch and grown != batch:
        raise AtollError(f"{given.file}: says two batches, {batch} and in the end {grown}")
    batch = batch or grown
    if batch is None and devices is not None:
        batch = fields["microbatch"] * max(1, devices // ranks)
    if batch is not None:
        fields["batch"] = batch
    steps = given.count("train_iters")
    given.ignore((*WORDS.without_effect, *WORDS.as_priced))
    return Launch(given.file, "megatron", model, fields, steps, given.accounted())


def _last_batch(given: Arguments) -> int | None:
    """Sequences of most steps where batches grow: "0:768 250B:1536"."""
    said = (given.text("step_batch_size_schedule") or "").split()
    last = said[-1].rpartition(":")[2] if said else ""
    return int(last) if last.isdigit() else None


def layout_fields(given: Arguments, layers: int) -> dict[str, Any]:
    """Degrees and what goes with them, in megatron-core's words."""
    pp = given.count("pipeline_model_parallel_size") or 1
    tp = given.count("tensor_model_parallel_size", "model_parallel_size") or 1
    if pp == 1:
        given.has("no_pipeline_parallel")
    chunks = given.count(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"
    )
    a_chunk = given.count("num_layers_per_virtual_pipeline_stage")
    if chunks is None and a_chunk:
        chunks = max(1, layers // pp // a_chunk)
    written = given.text("pipeline_model_parallel_layout")
    held = _blocks(written or "")
    if written is not None and chunks is None:
        chunks = max(1, len(held) // pp)
    said = pp > 1 and sum(held) == layers and len(held) == pp * (chunks or 1)
    return {
        "tp": tp,
        "pp": pp,
        "cp": given.count("context_parallel_size", "ds_sequence_parallel_size") or 1,
        "ep": given.count("expert_model_parallel_size", "moe_expert_parallel_size") or 1,
        "etp": given.count("expert_tensor_parallel_size") or None,
        "vpp": chunks if chunks and pp > 1 else 1,
        "sp": given.has("sequence_parallel") and tp > 1,
        "microbatch": given.count("micro_batch_size") or 1,
        "zero": _zero(given),
        "hsdp": given.count("num_distributed_optimizer_instances") or 1,
        "recompute": _recompute(given),
        "blocks": held if said else (),
    }


def _blocks(layout: str) -> tuple[int, ...]:
    """Blocks of every chunk of a written layout: "Et*3|(tt|)*29,m|L" in megatron-core's words."""
    text = layout.replace(" ", "").replace(",", "").strip("\"'")
    while found := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: found.start()] + found[1] * min(int(found[2]), 4096) + text[found.end() :]
        if len(text) > 100_000:
            raise AtollError("pipeline_model_parallel_layout: has too many stages")
    chunks = (re.findall(r"t(?:\*(\d+))?", chunk) for chunk in text.split("|"))
    return tuple(sum(int(times or 1) for times in found) for found in chunks)


def _zero(given: Arguments) -> int:
    strategy = given.text("data_parallel_sharding_strategy")
    fsdp = given.has(*FSDP)
    optimizer = given.has("use_distributed_optimizer")
    stage = given.count("zero_stage")  # DeepSpeed's, which its JSON repeats
    if given.has("optimizer_cpu_offload") and given.number("optimizer_offload_fraction") != 0:
        given.refuse_offload("optimizer_cpu_offload")
    if given.has("deepspeed"):
        given.has("deepspeed_config")
        given.refuse_offload("cpu_optimizer")
        return stage or 0
    if fsdp:
        names = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return names.get(strategy or "optim_grads_params", 3)
    return 1 if optimizer else 0


def _recompute(given: Arguments) -> str:
    granularity = given.text("recompute_granularity")
    if given.has("recompute_activations"):
        granularity = granularity or "selective"
    if given.has("checkpoint_activations"):
        given.has("deepspeed_activation_checkpointing")
        granularity = "full"
    method, layers = given.text("recompute_method"), given.count("recompute_num_layers")
    modules = (given.text("recompute_modules") or "core_attn").replace(",", " ").split()
    if granularity is None:
        hosted = given.count("cpu_offloading_num_layers")
        return f"{HOST}@{hosted}" if hosted else "none"
    if granularity == "full":
        return f"{SOME}{layers}" if method == "block" and layers else "full"
    return "selective" if modules == ["core_attn"] else "+".join(modules)


def _precision(given: Arguments) -> dict[str, Any]:
    fp8 = given.text("fp8_format", "fp8")
    recipe = given.text("fp8_recipe")
    fp4 = given.text("fp4_format", "fp4")
    given.text("fp4_recipe")
    fp16, bf16 = given.has("fp16"), given.has("bf16")
    if fp16 and bf16:
        raise AtollError(f"{given.file}: says both --fp16 and --bf16")
    if fp8 is not None and fp4 is not None:
        raise AtollError(f"{given.file}: says both 8-bit and 4-bit products")
    half = "fp16" if fp16 else "bf16" if bf16 else None
    if fp4 is not None:
        half = "nvfp4"
    elif fp8 is not None or given.has("fp8_hybrid", "fp8_e4m3"):
        half = "mxfp8" if recipe == "mxfp8" else "fp8"
    if half is None:
        raise AtollError(
            f"{given.file}: trains in fp32 (neither --bf16 nor --fp16), which is not modelled"
        )
    wide = given.has("accumulate_allreduce_grads_in_fp32")
    narrow = given.has("grad_reduce_in_bf16") or (half == "fp16" and not wide)
    if str(given.given.get("optimizer", "adam")) == "adam":  # whose states the others do not have
        given.has("optimizer")
    return {"precision": half, "optimizer": "mixed16" if narrow else "mixed"}


def _dispatcher(given: Arguments) -> str:
    """Who exchanges tokens of experts: DeepEP and HybridEP send one once to a node."""
    kind = given.text("moe_token_dispatcher_type") or "allgather"
    backend = given.text("moe_flex_dispatcher_backend") or "deepep"
    return backend if given.has("moe_enable_deepep") or kind == "flex" else kind


def software_fields(given: Arguments) -> dict[str, Any]:
    """Attention kernel, and what the flags let overlap."""
    backend = given.text("attention_backend")
    unfused = backend == "unfused" or given.has("no_flash_attn")
    given.has("use_flash_attn")
    fused = given.has("cross_entropy_loss_fusion")
    deferred = given.has("defer_embedding_wgrad_compute")
    limit = given.count("wgrad_deferral_limit") or 0
    flags = {
        "local": given.text("transformer_impl") == "local",
        "fp8_params": given.has("fp8_param_gather", "fp8_param"),
        "fp8_act": given.has("activation_func_fp8_input_store"),
        "te_loss": fused and given.text("cross_entropy_fusion_impl") == "te",
        # (FSDP demands it, and adds gradients where it scatters them.)
        "no_grad_fusion": given.has("no_gradient_accumulation_fusion") and not given.has(*FSDP),
        f"head_wgrad={limit}": deferred and limit,
        "cp_p2p": (ring := given.given.get("cp_comm_type") == "p2p"),
        "cp_a2a": (heads := given.given.get("cp_comm_type") == "a2a")
        or "ds_sequence_parallel_size" in given.given,
    }
    if ring or heads:  # others are not priced
        given.text("cp_comm_type")
    if not unfused:  # of a kernel that is not used
        given.has("no_masked_softmax_fusion")
    overlaps = {
        "grad_reduce": (reduced := given.has("overlap_grad_reduce")),
        "no_grad_reduce": not reduced,
        "param_gather": given.has("overlap_param_gather"),
        "tp_comm": given.has("tp_comm_overlap"),
        "p2p": not given.has("no_overlap_p2p_communication")
        or given.has("overlap_p2p_communication"),
        "ep_a2a": given.has("overlap_moe_expert_parallel_comm"),
        f"dispatcher={_dispatcher(given)}": "num_experts" in given.given,
    }
    graphs = given.has("enable_cuda_graph", "external_cuda_graph")
    scope = given.text("cuda_graph_scope", "cuda_graph_impl")
    said = {"cuda_graphs": scope or "layer"} if graphs or scope else {}
    return {
        "attention": "unfused" if unfused else "flash",
        "overlap": " ".join(name for name, on in overlaps.items() if on),
        "flags": " ".join(name for name, on in flags.items() if on),
        **said,
    }
