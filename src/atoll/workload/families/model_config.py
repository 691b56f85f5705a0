"""What a transformer is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A mixer that carries a state along the sequence instead of looking back at all of it.

    Every head keeps a matrix of `state` x `head_dim` numbers: Mamba-2 (arXiv:2405.21060), gated
    delta nets (arXiv:2412.06464), lightning attention (arXiv:2501.08313). Mamba-1
    (arXiv:2312.00752) has heads of one column; a short convolution has no state at all.
    """

    heads: int
    head_dim: int
    """Columns of a head of the values."""
    state: int
    """Columns of a head of the keys and queries (B and C in Mamba)."""
    groups: int
    """Heads of keys and queries, each for several of the values."""
    kernel: int = 0
    """Taps of the causal convolution before the scan; 0 for none."""
    chunk: int = 0
    """Tokens that are taken together as products; 0 for a scan token by token (Mamba-1)."""
    conv_bias: bool = False
    bias: bool = False
    """On the projections in and out."""
    norm: bool = True
    """Of the scan's output."""
    rank: int = 0
    """Width of the steps' narrow projection (Mamba-1)."""

    @property
    def inner(self) -> int:
        """Columns of the values."""
        return self.heads * self.head_dim


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
    norm_bias: bool = True
    """Layer norms have their shift."""
    positions: str = "learned"
    """"learned", "rotary", "alibi", "relative" (T5) or "none"."""
    rotary_dim: int = 0
    """Dimensions of a head that are rotated; 0 for all of them."""
    position_buckets: int = 0
    """Rows of the table of relative positions, which has a column for each head (T5)."""
    unrotated: tuple[int, ...] = ()
    """Blocks without rotary positions in a model that has them (SmolLM3, Llama 4)."""
    encoder_layers: int = 0
    """Of the blocks, those of an encoder whose output the others attend to; 0 for a model of one
    stack."""
    decoder_sequence: int = 0
    """Tokens of the decoder's sequence where they are not as many as the encoder's."""
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
    """"softmax", or "sigmoid" (DeepSeek-V3, with a correction for each expert that is a buffer)."""
    expert_groups: tuple[int, int] = (0, 0)
    """Experts stand in so many groups, and a token goes to at most so many of them (DeepSeek-V3:
    four of eight, each on a node of its own); none for no such limit."""
    router_bias: bool = False
    router_correction: bool = False
    """The correction counts as a parameter, though no gradient trains it (ERNIE 4.5)."""
    expert_bias: bool = False
    shared_ffn: int = 0
    """Columns of the experts that see every token, side by side; 0 for none."""
    shared_gate: bool = False
    """A sigmoid gate on the shared experts' output (Qwen-MoE)."""
    dense_layers: tuple[int, ...] = ()
    """Blocks of a mixture of experts that have an ordinary feed-forward layer instead."""
    dense_ffn: int = 0
    """Columns of that layer."""
    mixer: str = "attention"
    """What mixes tokens: "attention", "mamba2", "mamba1", "delta" (gated delta net), "lightning",
    "conv" (short convolution), "attention+mamba2" side by side, "none" (feed-forward only)."""
    mixers: tuple[str, ...] = ()
    """The mixer of each block, where they differ."""
    scan: StateSpace | None = None
    """The shape of the mixers that are not attention."""
    one_branch: bool = False
    """A block is a mixer or a feed-forward layer, not both (Mamba-2, Nemotron-H)."""
    causal: bool = True
    window: int = 0
    """Sliding attention window in tokens; 0 for none."""
    windows: tuple[int, ...] = ()
    """The window of each block, where they differ (Gemma 2)."""
    context: int = 1
    """Devices that share a sequence (context parallelism): each has a part of it, windows are of
    the whole."""
    chunked: bool = False
    """Windows are chunks: tokens see those before them in their own chunk only (Llama 4)."""
    sinks: bool = False
    """Every head has a logit to which no value belongs (gpt-oss)."""
    gated_attention: bool = False
    """Attention's output is multiplied with a sigmoid gate, made beside the queries."""
    value_dim: int = 0
    """Width of a value head where it differs from `head_dim`."""
    latent_kv: int = 0
    """Keys and values go through a latent of this width (MLA, arXiv:2405.04434); 0 for none."""
    latent_q: int = 0
    """The same for queries, which MLA may leave direct."""
    qk_norm: bool = False
    """Every head of queries and keys is normed (Qwen3)."""
    qk_norm_form: str = "head"
    """"head" (one scale for all heads), "wide" (over all heads at once, OLMo 2) or "plain" (each
    head, without a scale, Llama 4)."""
    score_cap: bool = False
    """Attention scores pass through c tanh(x / c) (Gemma 2)."""
    logit_cap: bool = False
    parallel: bool = False
    """Attention and feed-forward layer both start from the block's input (GPT-J, NeoX, Phi)."""
    one_norm: bool = False
    """A parallel block's two branches share one norm (GPT-J, Phi)."""
    branch_norms: bool = False
    """A second norm closes each branch (Gemma 2)."""
    opening_norms: bool = True
    """A norm opens each branch; without, its closing norm is the only one (OLMo 2)."""
    bare_first: bool = False
    """The first block's mixer reads its input as it is (ModernBERT)."""
    norm_residual: bool = False
    """The residual starts at the branch's opening norm (MiniMax)."""
    branch_scale: bool = False
    """A constant multiplies each branch (Granite), or the residual beside it (MiniMax)."""
    post_norm: bool = False
    """Norms follow the residual additions (BERT, OPT-350m) instead of opening each branch."""
    final_norm: bool = True
    embedding_norm: bool = False
    embedding_scale: bool = False
    """Embeddings are multiplied by the root of their width (Gemma)."""
    head_scale: bool = False
    """The head's input is divided by the root of its width (T5 with tied embeddings)."""
    logit_scale: bool = False
    """A constant multiplies the logits (Granite, Cohere)."""
    head_bias: bool = False
    """A bias on the logits (GPT-J, Phi)."""
    token_types: int = 0
    embedding_width: int = 0
    """Width of the word table where it differs from `hidden` (OPT-350m projects in and out)."""
    mtp_layers: int = 0
    """Blocks behind the others that predict tokens further on, each from the hidden states and the
    next token's embedding, with a loss of its own (DeepSeek-V3, arXiv:2412.19437)."""
    mlm_head: bool = False
    """Masked-language-model head: dense, activation, norm, then a decoder with a bias."""
    mlm_bias: bool = True
    """Its dense layer has a bias."""
    patch_inputs: int = 0
    """Numbers in an image patch; 0 for a language model. `vocab` is then the number of classes,
    and a sequence is one class token and the patches of an image (ViT)."""
    default_sequence: int = 0
    published_parameters: int = 0
    approximate: bool = False
    """The published count is rounded, or its exact make-up not known."""
    source: str = ""
    part: str = ""
    """Which part of a larger model this is."""
    not_modelled: tuple[str, ...] = ()
    """What the configuration says and no builder reads, each a sentence."""
    rotary_base: float | None = None
    """Of rotary positions, and `norm_epsilon` of norms, where they are told: no operator depends on
    them, but a launch file must say them."""
    norm_epsilon: float | None = None
    rotary_scaling: str = ""
    """How positions are stretched beyond those of pretraining, by name."""

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
        """Columns of every feed-forward layer, and heads of a state: what a tensor-parallel width
        must divide."""
        return tuple(w for w in (self.expert_width, *self.dense_widths) if w)

    @property
    def expert_width(self) -> int:
        """Columns of one expert; 0 without experts."""
        return self.ffn if self.experts else 0

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """The others' columns, and heads of a state."""
        heads = self.scan.heads if self.scan is not None else 0
        ffn = 0 if self.experts else self.ffn
        return tuple(w for w in (ffn, self.shared_ffn, self.dense_ffn, heads) if w)

    def width_words(self, width: int) -> str:
        """What one of these widths counts."""
        is_ffn = width in (self.ffn, self.shared_ffn, self.dense_ffn)
        return "feed-forward columns" if is_ffn else "heads of the state"

    @property
    def recurrent(self) -> bool:
        """Whether some block carries a state along the sequence, which is then not divided."""
        return self.scan is not None

    @property
    def special(self) -> str:
        """What the usual description of a transformer does not say, in words; "" for nothing."""
        features = {
            "mixers other than attention": self.recurrent,
            "blocks without rotary positions": bool(self.unrotated),
            "chunked attention": self.chunked,
            "attention sinks": self.sinks,
            "gated attention": self.gated_attention,
            "norms over all heads": self.qk_norm and self.qk_norm_form != "head",
            "norms behind its branches only": not self.opening_norms,
            "norms without a shift": self.norm == "layernorm" and not self.norm_bias,
            "a residual that starts at its norm": self.norm_residual,
            "constants on its branches": self.branch_scale,
            "scaled logits": self.logit_scale,
            "biases in its experts": self.expert_bias or self.router_bias,
        }
        return next((words for words, present in features.items() if present), "")
