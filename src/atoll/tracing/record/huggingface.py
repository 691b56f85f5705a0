"""Modules of the transformers library, built from a configuration alone, ready to be captured.

The library's own attention looks at the mask's values to choose a kernel, which fake tensors do not
have. Through its public registry an attention function is put in place that calls torch's fused
attention directly: causal or not as the model is, with the window or chunk that the layer has, and
with grouped key and value heads as they are. Experts run as one grouped product; Llama 4's, which
the library runs on all tokens, as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.workload.families.config import config_from_hf
from atoll.workload.graph.products import attention_fraction
from atoll.workload.load import read_json
from atoll.workload.stored import is_stored

_CAUSAL, _FULL = "atoll_causal", "atoll_full"
_MASKED_LM = (
    "bert", "megatron-bert", "roberta", "xlm-roberta", "albert", "distilbert", "electra",
    "modernbert",
)  # fmt: skip
_TRANSLATING = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian")
_EAGER_ONLY = ("gptj", "bloom", *_TRANSLATING)  # do not ask the registry
_IMAGE = ("vit", "deit", "beit", "dinov2", "convnext", "convnextv2", "swin")
MOST_LAYERS = 10_000


def module_from_config(
    config: str | Path | dict[str, Any], *, sequence: int = 512
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A factory for the module that trains this config.json, and example inputs for it."""
    try:
        import torch
        import transformers
        from transformers import initialization
    except ImportError:
        raise AtollError(
            "modules from a config.json need the transformers library: "
            'pip install "atoll[torch,transformers]"'
        ) from None
    fields = dict(config) if isinstance(config, dict) else read_json(Path(config))
    if not isinstance(config, dict):
        _check(fields, str(config), sequence)
    model_type = str(fields.pop("model_type", ""))
    causal = model_type not in (*_MASKED_LM, *_IMAGE)
    for name, looks_back in ((_CAUSAL, True), (_FULL, False)):
        transformers.AttentionInterface.register(name, _attention(looks_back))
    for field in ("atoll", "rope_scaling"):  # ours; and one that changes no shape
        fields.pop(field, None)
    fields["attn_implementation"] = _CAUSAL if causal else _FULL
    if model_type in _EAGER_ONLY:
        fields["attn_implementation"] = "eager"
    if causal:
        fields["use_cache"] = False
    if model_type in _TRANSLATING:
        fields = {"decoder_start_token_id": 0, "pad_token_id": 0} | fields
    if model_type not in transformers.CONFIG_MAPPING:
        raise AtollError(f"transformers knows no model_type {model_type!r}")
    try:
        settings = transformers.AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # each version has errors of its own
        why = " ".join(str(error).split())[:200]
        raise AtollError(f"transformers cannot read this configuration ({why})") from None
    if model_type in _IMAGE:
        loader = transformers.AutoModelForImageClassification
        size = settings.image_size
        pixels = torch.empty(1, settings.num_channels, size, size, device="meta")
        labels = torch.empty(1, dtype=torch.int64, device="meta")
        inputs = {"pixel_values": pixels, "labels": labels}
    else:
        ids = torch.empty(1, sequence, dtype=torch.int64, device="meta")
        inputs = {"input_ids": ids, "labels": ids}
        loader = transformers.AutoModelForCausalLM
        if model_type in _MASKED_LM:
            loader = transformers.AutoModelForMaskedLM
            for name in ("attention_mask", "position_ids"):  # the library would look at the ids
                inputs[name] = torch.empty(1, sequence, dtype=torch.int64, device="meta")
        elif model_type in _TRANSLATING:
            loader = transformers.AutoModelForSeq2SeqLM
    if type(settings) not in loader._model_mapping:
        raise AtollError(
            f"transformers has no module to train model_type {model_type!r} on tokens or images "
            "alone; write a function that builds yours, and capture that"
        )
    kind = loader._model_mapping[type(settings)]
    if any("expert" in name for name in fields) and kind._can_set_experts_implementation():
        settings._experts_implementation = "grouped_mm"  # one product, not a loop over the data

    def build() -> Any:
        with initialization.no_init_weights():
            module = loader.from_config(settings, attn_implementation=settings._attn_implementation)
        module.tie_weights()  # left out together with the initial values
        for child in module.modules():
            if type(child).__name__ == "Llama4TextMoe":
                _route(child)
        return module.eval()

    return build, inputs


def _check(fields: dict[str, Any], where: str, sequence: int) -> None:
    """Raise on mistakes that fake tensors do not detect or report unclearly."""
    if is_stored(fields):
        raise AtollError(f"{where}: already an atoll-model file; give it to --model")
    if not fields.get("model_type"):
        raise AtollError(f"{where}: field 'model_type' is missing")
    for name, value in fields.items():  # the library builds them one by one
        if "layer" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise AtollError(f"{where}: {name} is {value}, but at most {MOST_LAYERS:,} are built")
    try:
        config = config_from_hf(fields, where)
    except AtollError:  # no family of ours: the library decides
        return
    if config.positions == "learned" and not config.patch_inputs and sequence > config.max_sequence:
        raise AtollError(
            f"{where}: sequence is {sequence}, but its position table ends at {config.max_sequence}"
        )


def _attention(causal: bool) -> Callable[..., Any]:
    def run(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
    ) -> tuple[Any, None]:
        from torch.nn.functional import scaled_dot_product_attention

        from atoll.tracing.record.torch_api import score_share

        with score_share(_share(module, query, key, options) if causal else None):
            out = scaled_dot_product_attention(
                query, key, value, is_causal=causal, scale=options.get("scaling"),
                enable_gqa=query.shape[1] != key.shape[1],
            )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    return run


def _share(module: Any, query: Any, key: Any, options: dict[str, Any]) -> float | None:
    """Share of the scores left by a window or chunk; None: only the causal mask applies."""
    tokens = int(query.shape[2])
    if tokens != int(key.shape[2]):
        return None
    window = options.get("sliding_window")
    if isinstance(window, int) and 0 < window < tokens:
        return attention_fraction(tokens, True, window)
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    chunk = getattr(config, "attention_chunk_size", None)
    if kinds and layer is not None and kinds[layer] == "chunked_attention" and chunk:
        return attention_fraction(tokens, True, chunk, chunked=True)
    return None


def _route(moe: Any) -> None:
    """Give Llama 4's experts the tokens that are routed to them, as training does; the library's
    own module runs every expert on every token and multiplies by zero."""
    import torch
    from transformers.integrations.moe import grouped_mm_experts_forward

    experts = moe.experts
    experts.has_gate, experts.has_bias, experts.is_transposed = True, False, True
    experts.has_post_expert_norm = experts._is_expert_parallel = False

    def gated(joint: Any) -> Any:
        gate, up = joint.chunk(2, dim=-1)
        return up * experts.act_fn(gate)

    experts._apply_gate = gated

    def forward(hidden_states: Any) -> tuple[Any, Any]:
        tokens = hidden_states.reshape(-1, moe.hidden_dim)
        logits = torch.nn.functional.linear(tokens, moe.router.weight)
        chosen, index = torch.topk(logits, moe.top_k, dim=1)
        weights = torch.sigmoid(chosen.float()).to(tokens.dtype)
        routed = grouped_mm_experts_forward(experts, tokens, index, weights)
        return moe.shared_expert(tokens) + routed, logits

    moe.forward = forward
