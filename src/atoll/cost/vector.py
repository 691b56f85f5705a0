"""Cycles of vector operators, per function.

A vector core applies one operation per lane and cycle. Row functions (norms, softmax) keep a row on
one core; element-wise functions pack elements densely. Partly filled lanes are padded.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.base.errors import AtollError
from atoll.workload.graph.operator import VectorWork

ROW_FUNCTIONS = frozenset(
    {
        "layernorm", "layernorm_bwd", "rmsnorm", "rmsnorm_bwd", "softmax", "softmax_bwd",
        "cross_entropy", "cross_entropy_bwd", "topk", "topk_bwd",
    }
)  # fmt: skip

# Operations per element. An exponential takes 10, as in PHAZE's vector model (ICML 2024 release);
# the others are counted: layer norm forward = two accumulations and two multiply-adds; GELU in its
# tanh form = one exponential, a division folded into it, and eight multiply-adds; a cast = the
# maximum of a block (or of a tensor, in an earlier pass: the second of fp8), scaling, rounding.
DEFAULT_OPERATIONS = {
    "layernorm": 4, "layernorm_bwd": 8, "rmsnorm": 3, "rmsnorm_bwd": 6,
    "softmax": 14, "softmax_bwd": 4, "cross_entropy": 14, "cross_entropy_bwd": 3,
    "add": 1, "add_bwd": 1, "mul": 1, "mul_bwd": 2, "bias": 1, "bias_bwd": 1, "bias_grad": 1,
    "gelu": 18, "gelu_bwd": 26, "relu": 1, "relu_bwd": 1, "silu": 13, "silu_bwd": 15,
    "tanh": 12, "tanh_bwd": 3, "dropout": 2, "dropout_bwd": 1, "rotary": 3, "rotary_bwd": 3,
    "topk": 4, "topk_bwd": 1, "exp": 10, "cast_fp8": 2, "cast_nvfp4": 3,
    "relu2": 2, "relu2_bwd": 2, "xielu": 14, "xielu_bwd": 18,
}  # fmt: skip

# Cycles per element of PHAZE's vector estimator; other functions use the default.
PHAZE_OPERATIONS = DEFAULT_OPERATIONS | {
    "layernorm": 1, "layernorm_bwd": 1, "rmsnorm": 1, "rmsnorm_bwd": 1,
    "softmax": 11, "softmax_bwd": 2, "gelu": 1, "gelu_bwd": 1, "tanh": 27, "tanh_bwd": 2,
}  # fmt: skip

# Exponentials on separate units, one per eight lanes, concurrent with the lanes.
_WITH_EXPONENTIAL = (
    "softmax", "cross_entropy", "gelu", "gelu_bwd", "silu", "silu_bwd", "tanh", "exp", "xielu",
    "xielu_bwd",
)  # fmt: skip
SPECIAL_OPERATIONS = DEFAULT_OPERATIONS | {
    name: max(8, DEFAULT_OPERATIONS[name] - DEFAULT_OPERATIONS["exp"]) for name in _WITH_EXPONENTIAL
}

Counts = TypeVar("Counts", int, NDArray[np.int64])

OPERATIONS = {
    "default": DEFAULT_OPERATIONS,
    "phaze": PHAZE_OPERATIONS,
    "special": SPECIAL_OPERATIONS,
}


def operations_per_element(function: str, operations: str) -> int:
    table = OPERATIONS[operations]
    if function not in table:
        functions = ", ".join(sorted(table))
        raise AtollError(f"vector function {function!r} has no cost; known functions: {functions}.")
    return table[function]


def vector_cycles(
    work: VectorWork, cores: Counts, lanes: Counts, operations: str = "default"
) -> Counts:
    """Return the cycles of one pass on `cores` vector cores of `lanes` lanes, or on arrays."""
    per_element = operations_per_element(work.function, operations)
    if work.function in ROW_FUNCTIONS:
        return -(-work.rows // cores) * -(-work.cols // lanes) * per_element
    return -(-work.elements // (cores * lanes)) * per_element
