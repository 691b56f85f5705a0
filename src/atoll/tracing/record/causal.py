"""Find causal softmaxes: attention whose mask compares positions."""

from __future__ import annotations

from collections.abc import Iterable

from atoll.tracing.record.aten import COPIES, ELEMENTWISE
from atoll.tracing.record.trace import ModuleTrace, OperatorCall

SOFTMAXES = frozenset(("_softmax", "_safe_softmax"))
# A triangle is cut out, or positions are compared with one another.
_TRIANGLES = frozenset(("tril", "triu", "le", "ge", "lt", "gt"))


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
