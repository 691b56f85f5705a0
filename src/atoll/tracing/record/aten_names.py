"""Names of torch's operators (its ATen library), by what they do."""

from __future__ import annotations

# Element by element: the vector function of each (names of atoll.cost.vector).
_ONE_OPERATION = """
    add sub rsub neg abs where masked_fill maximum minimum clamp clamp_min clamp_max eq ne lt le gt
    ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not sign floor ceil round
    trunc floor_divide remainder fmod isinf isnan triu tril hardtanh relu6 bernoulli rand_like
    uniform normal hardsigmoid
"""
_ONE_PRODUCT = "mul div pow square reciprocal lerp addcmul addcdiv hardswish hardswish_backward"
_EXPONENTIAL = """
    exp log log1p expm1 exp2 log2 sin cos erf erfc rsqrt sqrt softplus softplus_backward atan2 tan
    asin acos atan polar mish mish_backward elu elu_backward log_sigmoid
"""
ELEMENTWISE: dict[str, str] = {
    **dict.fromkeys(_ONE_OPERATION.split(), "add"),
    **dict.fromkeys(_ONE_PRODUCT.split(), "mul"),
    **dict.fromkeys(_EXPONENTIAL.split(), "exp"),
    "tanh": "tanh", "sigmoid": "tanh", "tanh_backward": "tanh_bwd", "sigmoid_backward": "tanh_bwd",
    "gelu": "gelu", "gelu_backward": "gelu_bwd", "silu": "silu", "silu_backward": "silu_bwd",
    "relu": "relu", "leaky_relu": "relu", "threshold_backward": "relu_bwd",
    "leaky_relu_backward": "relu_bwd", "hardtanh_backward": "relu_bwd",
    "native_dropout": "dropout", "native_dropout_backward": "dropout_bwd",
    "_fused_dropout": "dropout",
}  # fmt: skip

# Element by element without an operation: copies, and what a compiler turns into addressing.
_COPIED = """
    _to_copy clone copy copy_ contiguous cat stack slice_backward select_backward constant_pad_nd
    expand_copy repeat lift_fresh lift_fresh_copy slice_scatter select_scatter as_strided_scatter
    roll flip diagonal_backward unfold_backward permute_copy reflection_pad1d lift detach_
    one_hot resize_ set_ view_copy unbind_copy split_with_sizes_copy
"""
COPIES = frozenset(_COPIED.split())
# Written without reading anything: of the tensors that they are given only the shape counts.
_FILLED = """
    zeros zeros_like new_zeros zero_ ones ones_like new_ones full full_like new_full fill fill_
    empty empty_like new_empty empty_strided new_empty_strided arange eye linspace scalar_tensor
"""
FILLS = frozenset(_FILLED.split())
ZEROS = frozenset(("zeros", "zeros_like", "new_zeros", "zero_"))

# Sums and the like: one operation for each element that they read.
_SUMMED = """
    sum mean amax amin max min var std var_mean std_mean prod logsumexp cumsum cumprod norm
    linalg_vector_norm any all argmax argmin count_nonzero logcumsumexp aminmax cummax histc
    bincount
"""
SUMS = frozenset(_SUMMED.split())

# Parts of the loss whose work stands in its softmax.
_LOSS = "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"
LOSSES = frozenset(_LOSS.split())

# Elements read by index, and written in order: a compiler reads them so inside the next kernel.
GATHERS = frozenset(("index", "gather", "index_select", "take_along_dim"))

# Elements written by index: a compiler computes them inside the kernel that writes them.
SCATTERS = frozenset(("scatter", "scatter_", "index_put", "index_put_", "index_copy"))
_ADDED = "index_add index_add_ scatter_add scatter_add_ _index_put_impl_"
ADDING_SCATTERS = frozenset(_ADDED.split())

# Elements by index, in kernels of their own.
_MOVED = """
    embedding_renorm masked_select nonzero unfold im2col col2im index_fill searchsorted bucketize
    upsample_nearest2d upsample_bilinear2d max_pool2d_with_indices avg_pool2d
    max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward upsample_nearest2d_backward upsample_bilinear2d_backward
"""
MOVES = frozenset(_MOVED.split())
