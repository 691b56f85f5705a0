"""How far estimates of a kind of run were from measured ones (docs/accuracy.md).

Dense models on V100 to H200, GB200 and GB300 are what the model was fitted and held against; a run
outside of that says so, and its times are shown to the digits that the error leaves.
"""

from __future__ import annotations

from atoll.answers.plan import Expected
from atoll.step.layout import Layout
from atoll.training.run import Run

VALIDATED = ("a100-40", "a100-80", "gb200", "gb300", "h100", "h200", "v100", "v100-16")
LONG = 65536  # tokens from which rings were measured to be slower than estimated
DIGITS, FEW_DIGITS = 4, 2
UNSURE = 0.1  # mean error from which times are shown to few digits


DEVICES = {
    "b200": Expected("on b200", 0.219, 23),
    "b300": Expected("on b300", 0.133, 9),
    "h100-96": Expected("on h100-96", 0.138, 27),
    "tpu-v5e": Expected("on tpu-v5e", 0.112, 24),
    "tpu-v5p": Expected("on tpu-v5p", 0.176, 6),
    "tpu-v6e": Expected("on tpu-v6e", 0.138, 12),
    "trainium1-core": Expected("on trainium1-core", 0.117, 16),
}
EXPERTS = Expected("of models with experts", 0.126, 69)
ADAPTERS = Expected("of adapters on frozen weights", 0.112, 38)
LONG_RINGS = Expected("with context parallelism from 65,536 tokens", 0.281, 3)


def expected_error(run: Run, layout: Layout) -> Expected | None:
    """Of a site its own; else the worst kind that a run belongs to, none for what was validated."""
    if run.site is not None and run.site.error is not None:
        return Expected(f"at {run.site.name}", run.site.error, run.site.runs)
    found = []
    if run.gpu.name not in VALIDATED:
        found.append(DEVICES.get(run.gpu.name, Expected(f"on {run.gpu.name}")))
    if run.model.experts:
        found.append(EXPERTS)
    if run.adapters is not None:
        found.append(ADAPTERS)
    if layout.cp > 1 and run.sequence >= LONG:
        found.append(LONG_RINGS)
    return max(found, key=lambda e: 1.0 if e.mean is None else e.mean, default=None)
