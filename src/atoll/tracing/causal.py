"""Which softmaxes see only what lies before: attention whose mask compares positions."""

from __future__ import annotations

from atoll.tracing.aten_names import COPIES, ELEMENTWISE
from atoll.tracing.trace import Call, Trace

SOFTMAXES = frozenset(("_softmax", "_safe_softmax"))
# A triangle is cut out, or positions are compared with one another.
_TRIANGLES = frozenset(("tril", "triu", "le", "ge", "lt", "gt"))


def causal_softmaxes(trace: Trace) -> frozenset[int]:
    """Results of those softmaxes whose input a triangular mask went into: element by element,
    without a weight, a product or a look-up on the way.
    """
    makers = {view.value: call for call in trace.calls if not call.backward for view in call.outs}
    found: set[int] = set()
    for call in trace.calls:
        if call.op in SOFTMAXES and not call.backward and _masked(call, makers):
            found.update(view.value for view in call.outs)
    return frozenset(found)


def _masked(softmax: Call, makers: dict[int, Call]) -> bool:
    pending = [view.value for view in softmax.ins]
    seen = set(pending)
    while pending:
        call = makers.get(pending.pop())
        if call is None:
            continue
        name = call.op.rstrip("_")
        if name in _TRIANGLES:
            return True
        if name in ELEMENTWISE or call.op in COPIES:
            for view in call.ins:
                if view.value not in seen:
                    seen.add(view.value)
                    pending.append(view.value)
    return False
