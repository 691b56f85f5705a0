"""What a transformer is made of, read from a zoo entry or a Hugging Face style config.json."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.errors import AtollError
from atoll.workload.config_fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of one transformer, in the terms that its operators need."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Columns of the feed-forward layer (of one expert in a mixture of experts)."""
    vocab: int
    max_sequence: int
    gated: bool = False
    """The feed-forward layer multiplies an activated gate with a second projection (SwiGLU)."""
    activation: str = "gelu"
    norm: str = "layernorm"
    """"layernorm" (scale and shift) or "rmsnorm" (scale)."""
    positions: str = "learned"
    """"learned", "rotary" or "none"."""
    position_rows: int = 0
    """Rows of the learned position table (OPT keeps two more than its longest sequence)."""
    tied_embeddings: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    dropout: float = 0.0
    """Probability on the two residual branches; 0 leaves the operators out."""
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    causal: bool = True
    window: int = 0
    """Sliding attention window in tokens; 0 for none."""
    post_norm: bool = False
    """Norms follow the residual additions (BERT, OPT-350m) instead of opening each branch."""
    final_norm: bool = True
    embedding_norm: bool = False
    token_types: int = 0
    embedding_width: int = 0
    """Width of the word table where it differs from `hidden` (OPT-350m projects in and out)."""
    mlm_head: bool = False
    """Masked-language-model head: dense, activation, norm, then a decoder with a bias."""
    default_sequence: int = 0
    published_parameters: int = 0
    source: str = ""

    @property
    def sequence(self) -> int:
        """The sequence length used when none is asked for."""
        return self.default_sequence or self.max_sequence

    @property
    def word_width(self) -> int:
        return self.embedding_width or self.hidden


def config_from_hf(given: dict[str, object], where: str) -> ModelConfig:
    """Read a Hugging Face style configuration; `where` names its file in error messages."""
    fields = Fields(given, where)
    model_type = fields.text("model_type")
    reader = _READERS.get(model_type)
    if reader is None:
        raise AtollError(
            f"{where}: model_type is {model_type!r}, but only {', '.join(sorted(_READERS))} "
            "are known"
        )
    config = reader(fields)
    atoll = fields.block("atoll")
    return replace(
        config,
        default_sequence=atoll.size("sequence", 0),
        published_parameters=atoll.size("parameters", 0),
        source=atoll.text("source", ""),
    )


def zoo_names() -> tuple[str, ...]:
    """Names of the models that come with Atoll."""
    return tuple(
        sorted(entry.name[:-5] for entry in _zoo().iterdir() if entry.name.endswith(".json"))
    )


def load_config(name_or_path: str | Path) -> ModelConfig:
    """A zoo name, the path of a config.json, or a folder that holds one."""
    text = str(name_or_path)
    if text in zoo_names():
        entry = _zoo() / f"{text}.json"
        config = _parse(entry.read_text(encoding="utf-8"), f"{text} (zoo)")
        return replace(config, name=text)
    path = Path(name_or_path)
    try:
        folder = path.is_dir()
    except OSError as error:  # such as a name longer than the file system allows
        raise AtollError(f"{text[:80]}: cannot be read ({error.strerror})") from None
    if folder:
        path = path / "config.json"
        if not path.is_file():
            raise AtollError(f"{text} is a folder without a config.json in it")
    if path.is_file():
        config = _parse(_read(path), str(path))
        # A folder is the better name for a file that everyone calls config.json.
        stem = path.resolve().parent.name if path.name == "config.json" else path.stem
        return replace(config, name=stem)
    if path.suffix == ".json" or len(path.parts) > 1:
        raise AtollError(f"{text}: no such file or folder")
    close = difflib.get_close_matches(text.lower(), zoo_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}" if close else f"known: {', '.join(zoo_names())}"
    raise AtollError(f"no model is called {text!r} in the zoo, nor is there such a file; {hint}")


def _zoo() -> Traversable:
    return resources.files("atoll.workload") / "zoo"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtollError(f"{path}: not a UTF-8 text file (byte {error.start})") from None
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror})") from None


def _parse(text: str, where: str) -> ModelConfig:
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise AtollError(
            f"{where}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise AtollError(f"{where}: not usable JSON ({error})") from None
    if not isinstance(given, dict):
        raise AtollError(f"{where}: expected a JSON object, found a {type(given).__name__}")
    return config_from_hf(given, where)


def _bert(fields: Fields) -> ModelConfig:
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    # Megatron's BERT puts its norms first, drops the one after the embedding and adds a last one.
    megatron = fields.text("model_type") == "megatron-bert"
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    positions = fields.size("max_position_embeddings")
    dropout = fields.probability("hidden_dropout_prob", 0.1)
    return ModelConfig(
        name=fields.where,
        family="bert",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("hidden_act", "gelu"),
        position_rows=positions,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        dropout=dropout,
        attention_dropout=fields.probability("attention_probs_dropout_prob", 0.1),
        embedding_dropout=dropout,
        causal=False,
        post_norm=not megatron,
        final_norm=megatron,
        embedding_norm=not megatron,
        token_types=fields.size("type_vocab_size", 2),
        mlm_head=True,
    )


def _gpt2(fields: Fields) -> ModelConfig:
    hidden, heads = fields.hidden_and_heads("n_embd", "n_head")
    positions = fields.size("n_positions")
    return ModelConfig(
        name=fields.where,
        family="gpt2",
        hidden=hidden,
        layers=fields.size("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("n_inner", 4 * hidden),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("activation_function", "gelu_new"),
        position_rows=positions,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        dropout=fields.probability("resid_pdrop", 0.1),
        attention_dropout=fields.probability("attn_pdrop", 0.1),
        embedding_dropout=fields.probability("embd_pdrop", 0.1),
    )


def _opt(fields: Fields) -> ModelConfig:
    hidden, heads = fields.hidden_and_heads("hidden_size", "num_attention_heads")
    positions = fields.size("max_position_embeddings")
    width = fields.size("word_embed_proj_dim", hidden)
    bias = fields.flag("enable_bias", True)
    norm_first = fields.flag("do_layer_norm_before", True)
    return ModelConfig(
        name=fields.where,
        family="opt",
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("ffn_dim"),
        vocab=fields.size("vocab_size"),
        max_sequence=positions,
        activation=fields.activation("activation_function", "relu"),
        position_rows=positions + 2,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        attention_bias=bias,
        mlp_bias=bias,
        dropout=fields.probability("dropout", 0.1),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        post_norm=not norm_first,
        final_norm=norm_first and not fields.flag("_remove_final_layer_norm", False),
        embedding_width=width if width != hidden else 0,
    )


def _llama(fields: Fields) -> ModelConfig:
    hidden = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    fields.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    head_dim = fields.size("head_dim", 0)
    if not head_dim:
        fields.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = hidden // heads
    return ModelConfig(
        name=fields.where,
        family=fields.text("model_type"),
        hidden=hidden,
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.size("intermediate_size"),
        vocab=fields.size("vocab_size"),
        max_sequence=fields.size("max_position_embeddings"),
        gated=True,
        activation=fields.activation("hidden_act", "silu"),
        norm="rmsnorm",
        positions="rotary",
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        attention_dropout=fields.probability("attention_dropout", 0.0),
        window=fields.size("sliding_window", 0),
    )


def _mixtral(fields: Fields) -> ModelConfig:
    experts = fields.size("num_local_experts")
    chosen = fields.size("num_experts_per_tok")
    if chosen > experts:
        raise AtollError(
            f"{fields.where}: num_experts_per_tok is {chosen}, but must be at most "
            f"num_local_experts, {experts}"
        )
    return replace(_llama(fields), experts=experts, experts_per_token=chosen)


_READERS = {
    "bert": _bert,
    "megatron-bert": _bert,
    "gpt2": _gpt2,
    "opt": _opt,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
}
