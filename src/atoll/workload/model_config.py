"""What a transformer is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of one transformer, in the terms that its operators need."""

    name: str
    family: str
    hidden: int
    layers: int
    """Blocks, those of an encoder and its decoder together."""
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
    """"learned", "rotary", "alibi", "relative" (T5) or "none"."""
    rotary_dim: int = 0
    """Dimensions of a head that are rotated; 0 for all of them."""
    position_buckets: int = 0
    """Rows of the table of relative positions, which has a column for each head (T5)."""
    encoder_layers: int = 0
    """Of the blocks, those of an encoder whose output the others attend to; 0 for a model of one
    stack."""
    position_rows: int = 0
    """Rows of the learned position table (OPT keeps two more than its longest sequence)."""
    tied_embeddings: bool = True
    attention_bias: bool = True
    """Biases on queries, keys and values."""
    output_bias: bool = True
    """Bias on the output projection of attention."""
    mlp_bias: bool = True
    dropout: float = 0.0
    """Probability on the two residual branches; 0 leaves the operators out."""
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    inner_dropout: float = 0.0
    """Within the feed-forward layer and behind the last norm of a stack (T5)."""
    experts: int = 0
    experts_per_token: int = 0
    router: str = "softmax"
    """"softmax", or "sigmoid" (with a correction bias for each expert, DeepSeek-V3)."""
    shared_ffn: int = 0
    """Columns of the experts that see every token, side by side; 0 for none."""
    shared_gate: bool = False
    """A sigmoid gate on the shared experts' output (Qwen-MoE)."""
    dense_layers: tuple[int, ...] = ()
    """Blocks of a mixture of experts that have an ordinary feed-forward layer instead."""
    dense_ffn: int = 0
    """Columns of that layer."""
    causal: bool = True
    window: int = 0
    """Sliding attention window in tokens; 0 for none."""
    windows: tuple[int, ...] = ()
    """The window of each block, where they differ (Gemma 2)."""
    value_dim: int = 0
    """Width of a value head where it differs from `head_dim`."""
    latent_kv: int = 0
    """Keys and values go through a latent of this width (MLA, arXiv:2405.04434); 0 for none."""
    latent_q: int = 0
    """The same for queries, which MLA may leave direct."""
    qk_norm: bool = False
    """Every head of queries and keys is normed (Qwen3)."""
    score_cap: bool = False
    """Attention scores pass through c tanh(x / c) (Gemma 2)."""
    logit_cap: bool = False
    parallel: bool = False
    """Attention and feed-forward layer both start from the block's input (GPT-J, NeoX, Phi)."""
    one_norm: bool = False
    """A parallel block's two branches share one norm (GPT-J, Phi)."""
    branch_norms: bool = False
    """A second norm closes each branch (Gemma 2)."""
    post_norm: bool = False
    """Norms follow the residual additions (BERT, OPT-350m) instead of opening each branch."""
    final_norm: bool = True
    embedding_norm: bool = False
    embedding_scale: bool = False
    """Embeddings are multiplied by the root of their width (Gemma)."""
    head_scale: bool = False
    """The head's input is divided by the root of its width (T5 with tied embeddings)."""
    head_bias: bool = False
    """A bias on the logits (GPT-J, Phi)."""
    token_types: int = 0
    embedding_width: int = 0
    """Width of the word table where it differs from `hidden` (OPT-350m projects in and out)."""
    mlm_head: bool = False
    """Masked-language-model head: dense, activation, norm, then a decoder with a bias."""
    patch_inputs: int = 0
    """Numbers in an image patch; 0 for a language model. `vocab` is then the number of classes,
    and a sequence is one class token and the patches of an image (ViT)."""
    default_sequence: int = 0
    published_parameters: int = 0
    approximate: bool = False
    """The published count is rounded, or its exact make-up not known."""
    source: str = ""

    @property
    def sequence(self) -> int:
        """The sequence length used when none is asked for."""
        return self.default_sequence or self.max_sequence

    @property
    def word_width(self) -> int:
        return self.embedding_width or self.hidden

    @property
    def value_width(self) -> int:
        """Columns of one value head."""
        return self.value_dim or self.head_dim

    @property
    def rotated(self) -> int:
        """Columns of one head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def ffn_widths(self) -> tuple[int, ...]:
        """Columns of every feed-forward layer: what a tensor-parallel width must divide."""
        return tuple(w for w in (self.ffn, self.shared_ffn, self.dense_ffn) if w)
