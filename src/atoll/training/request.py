"""From a user's words to a run and a layout."""

from __future__ import annotations

from math import inf

from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.device import load_device
from atoll.step.layout import Layout, check_positive
from atoll.step.states import load_states
from atoll.training.layers import block_names, experts_of
from atoll.training.run import Run
from atoll.training.stack import load_stack
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import load_model
from atoll.workload.prepare import prepare
from atoll.workload.shard import widths
from atoll.workload.stored import StoredModel
from atoll.yamlfile import suggestion

ATTENTION = ("flash", "flash2", "flash1", "unfused")
WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # of tensor parallelism, tried on captured models
PRECISIONS = ("bf16", "fp16", "fp8")


def make_run(
    model: str,
    device: str,
    devices: int,
    *,
    global_batch: int,
    sequence: int | None = None,
    network: str | None = None,
    stack: str | None = None,
    states: str = "mixed",
    precision: str | None = None,
    attention: str = "flash",
    imbalance: float = 1.0,
) -> Run:
    """A run by names: the model of the zoo or a file, the device and its network likewise."""
    given = load_model(model)
    config = _stand_in(given) if isinstance(given, StoredModel) else given
    gpu = load_device(device)
    length = config.sequence if sequence is None else sequence
    check_positive(devices=devices, global_batch=global_batch, sequence=length)
    if config.positions == "learned" and length > config.max_sequence:
        raise AtollError(
            f"{config.name}: sequence is {length}, but its position table ends at "
            f"{config.max_sequence}"
        )
    chosen = precision or gpu.half_dtype
    if chosen not in PRECISIONS:
        raise AtollError(f"precision {chosen!r} is not modelled{suggestion(chosen, PRECISIONS)}")
    gpu.peak_flops(chosen)
    if attention not in ATTENTION:
        raise AtollError(f"attention {attention!r} is not known{suggestion(attention, ATTENTION)}")
    if not 1 <= imbalance < inf:
        raise AtollError(f"imbalance is {imbalance!r}, but must be 1 (even experts) or more")
    return Run(
        model=config,
        gpu=gpu,
        network=load_network(network or gpu.network),
        devices=devices,
        sequence=length,
        global_batch=global_batch,
        stack=load_stack(stack or gpu.stack),
        states=load_states(states),
        precision=chosen,
        attention=attention,
        imbalance=imbalance,
        stored=given if isinstance(given, StoredModel) else None,
    )


def _stand_in(stored: StoredModel) -> ModelConfig:
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
        experts=max(experts_of(layer) for layer, _ in built.layers),
    )


def make_layout(
    run: Run,
    *,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    dp: int | None = None,
    vpp: int = 1,
    microbatch: int = 1,
    sp: bool | None = None,
    zero: int = 1,
    hsdp: int = 1,
    recompute: str = "none",
    schedule: str | None = None,
) -> Layout:
    """A layout; data parallelism takes the devices that the other axes leave."""
    check_positive(tp=tp, pp=pp, cp=cp, etp=tp if etp is None else etp)
    ranks = tp * pp * cp
    if dp is None:
        if run.devices % ranks:
            raise AtollError(
                f"devices {run.devices} is not a multiple of tp {tp} x pp {pp} x cp {cp} = {ranks}"
            )
        dp = run.devices // ranks
    if run.stored is not None and (cp > 1 or (sp and tp > 1)):
        raise AtollError(
            f"{run.model.name} was captured with whole sequences: cp must be 1 and sequence "
            "parallelism off"
        )
    if run.stored is not None and etp not in (None, tp):
        raise AtollError(f"{run.model.name} was captured: its experts have the tensor width tp")
    divided = (run.sequence // cp) % tp == 0
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp or tp,
        vpp=vpp,
        microbatch=microbatch,
        sp=(tp > 1 and divided and run.stored is None) if sp is None else sp and tp > 1,
        zero=zero,
        hsdp=hsdp,
        recompute=recompute,
        schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"),
    )
