"""Causal masks, and what a capture may have counted wrongly: experts on all tokens, other masks.

A module can compute more than training on a cluster would. Where the trace shows it, the file says
so, and every answer that uses the file repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from atoll.tracing.record.aten import COPIES, ELEMENTWISE
from atoll.tracing.record.trace import ModuleTrace, OperatorCall, ValueSource

SOFTMAXES = frozenset(("_softmax", "_safe_softmax"))
# A triangle is cut out, or positions are compared with one another.
_TRIANGLES = frozenset(("tril", "triu", "le", "ge", "lt", "gt"))
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "linear"))


def caveats(trace: ModuleTrace) -> tuple[str, ...]:
    """Return warnings about the model, without a full stop."""
    return (*_dense_experts(trace), *_windows(trace), *_masks(trace))


# --- experts --------------------------------------------------------------------------------------


def _dense_experts(trace: ModuleTrace) -> list[str]:
    """Warn about routed experts that all ran on all tokens."""
    routers: dict[tuple[int, int], list[str]] = {}
    for call in trace.calls:
        if call.op != "topk" or call.backward or not call.ins:
            continue
        scores, chosen_scores = call.ins[0], call.outs[0]
        experts, top = scores.shape[-1], chosen_scores.shape[-1]
        tokens = scores.elements // experts
        # The router may be the layer's own code or a module in it.
        paths = {call.path, call.path.rpartition(".")[0]}
        if top < experts and any(_rows(trace, p, experts) >= experts * tokens for p in paths):
            routers.setdefault((top, experts), []).append(call.path)
    return [
        f"each token has {top} of {experts} experts, but the module runs all {experts} on every "
        f"token ({paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}): their work "
        f"is counted {experts / top:g} times as often as training runs it; capture a module that "
        "routes its tokens (grouped products)"
        for (top, experts), paths in routers.items()
    ]


def _rows(trace: ModuleTrace, where: str, experts: int) -> int:
    """The most rows that one matrix of each expert in a module gets, all experts together."""
    start = f"{where}." if where else ""
    joint, alone = 0, dict[str, dict[str, int]]()
    for call in trace.calls:
        inside = call.path == where or call.path.startswith(start)
        if call.backward or call.op not in _PRODUCTS or not inside:
            continue
        for view in call.ins:
            value = trace.values[view.value]
            if value.source is not ValueSource.WEIGHT:
                continue
            rows = prod(call.outs[0].shape[:-1])
            if len(view.shape) == 3 and view.shape[0] == experts:
                joint = max(joint, rows)
            item, matrix = _item(value.name, start)
            if item is not None:
                alone.setdefault(matrix, {})[item] = rows
    lists = [sum(rows.values()) for rows in alone.values() if len(rows) == experts]
    return max([joint, *lists])


def _item(name: str, start: str) -> tuple[str | None, str]:
    """A weight's place in a list of modules ("experts.3.up.weight"), and its name in each."""
    if not name.startswith(start):
        return None, name
    parts = name[len(start) :].split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return part, ".".join((*parts[:place], "*", *parts[place + 1 :]))
    return None, name


# --- masks ----------------------------------------------------------------------------------------


def causal_softmaxes(trace: ModuleTrace) -> frozenset[int]:
    """Return the results of softmaxes whose input contains a triangular mask, through element-wise
    operators only."""
    makers = forward_makers(trace)
    results: set[int] = set()
    for call in trace.calls:
        softmax = call.op in SOFTMAXES and not call.backward
        if softmax and comparisons([view.value for view in call.ins], makers):
            results.update(view.value for view in call.outs)
    return frozenset(results)


def forward_makers(trace: ModuleTrace) -> dict[int, OperatorCall]:
    """Return the forward call that computed each value."""
    return {view.value: call for call in trace.calls if not call.backward for view in call.outs}


def comparisons(values: Iterable[int], makers: dict[int, OperatorCall]) -> list[OperatorCall]:
    """Return the position comparisons and triangles that the values depend on."""
    pending = list(values)
    visited = set(pending)
    calls = []
    while pending:
        call = makers.get(pending.pop())
        if call is None:
            continue
        name = call.op.rstrip("_")
        if name in _TRIANGLES:
            calls.append(call)
        elif name in ELEMENTWISE or call.op in COPIES:
            for view in call.ins:
                if view.value not in visited:
                    visited.add(view.value)
                    pending.append(view.value)
    return calls


def _is_attention(call: OperatorCall) -> bool:
    return "attention" in call.op and not call.backward and len(call.ins) >= 3


def _windows(trace: ModuleTrace) -> list[str]:
    """Warn about a configured window that no captured attention has."""
    attention = [call for call in trace.calls if _is_attention(call)]
    products = [call for call in trace.calls if call.op in SOFTMAXES and not call.backward]
    tokens = max([_tokens(call) for call in (*attention, *products)], default=0)
    seen = any(call.unmasked_share is not None for call in attention)
    if not trace.window or trace.window >= tokens or seen:
        return []
    return [
        f"its configuration has attention windows of {trace.window} tokens, which the capture "
        f"does not see: attention is counted over all {tokens} tokens; a capture of the "
        "config.json itself sees them"
    ]


def _tokens(call: OperatorCall) -> int:
    """Number of keys of an attention or softmax."""
    return call.ins[1].shape[-2] if _is_attention(call) else call.ins[0].shape[-1]


def _masks(trace: ModuleTrace) -> list[str]:
    """Warn about position masks that are counted as no mask or as causal only."""
    makers = forward_makers(trace)
    dense, repeated = 0, 0
    for call in trace.calls:
        if call.unmasked_share is not None or call.backward:
            continue
        if _is_attention(call):
            mask = [view.value for view in call.ins[3:4]]
            dense += bool(comparisons(mask, makers))
        elif call.op in SOFTMAXES:
            repeated += len(comparisons([view.value for view in call.ins], makers)) > 1
    sentences = []
    if dense:
        sentences.append(
            f"{dense} calls of fused attention have a mask that compares positions (a triangle, a "
            "window): they are counted in full; pass is_causal instead of a triangle"
        )
    if repeated and not trace.window:
        sentences.append(
            f"{repeated} attentions have masks that compare positions more than once: they are "
            "counted as causal, and a window in them is not seen"
        )
    return sentences
