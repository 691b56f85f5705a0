"""What is shown of an answer beside others: what was asked, and what came out."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from atoll.answers.answer import Answer
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import MappingAnswer, WaferAnswer
from atoll.errors import AtollError
from atoll.questions import EstimateQuestion, PlanQuestion

Figures = dict[str, JsonValue]
GIB = 2**30
_ASKED = (
    "model", "device", "devices", "network", "sequence", "global_batch", "stack", "states",
    "precision", "attention", "imbalance", "power_cap_W", "site",
)  # fmt: skip
_ASKED_AS = {*_ASKED, "batch", "optimizer", "power_cap", "kind"}
"""The same as fields of a question."""


def figures_of(found: Answer) -> Figures:
    """What came out, by name; the first is what is drawn against what was asked."""
    if isinstance(found, PlanAnswer | EstimateAnswer):
        whole = found.whole_run
        return {
            "tokens/s per device": found.tokens_per_s_per_device,
            "step s": found.step_time_s,
            "low s": found.interval.step_time_s.low,
            "high s": found.interval.step_time_s.high,
            "MFU": found.mfu,
            **({} if found.power_W is None else {"device W": found.power_W}),
            **({} if found.energy_per_token_J is None else {"J/token": found.energy_per_token_J}),
            "memory GiB": found.memory_bytes.needed / GIB,
            "fits": found.fits,
            **({"proven": found.certificate.proven} if isinstance(found, PlanAnswer) else {}),
            **({} if whole is None else {"days": whole.days, "device-hours": whole.device_hours}),
            **({} if whole is None or whole.dollars is None else {"dollars": whole.dollars}),
            "layout": found.layout_words,
        }
    if isinstance(found, SearchAnswer):
        chip, model = found.best.accelerator, found.best.models[0]
        return {
            "samples/s": found.throughput_samples_per_s,
            "area mm2": chip.area_mm2,
            "peak W": chip.peak_power_W,
            "peak TFLOP/s": chip.peak_TFLOPs,
            "HBM GiB": chip.hbm_GiB,
            "MFU": model.mfu,
            "step s": model.placement.step_time_s,
            "tensor cores": f"{chip.tensor_cores} of {chip.width}x{chip.depth}",
            "vector cores": f"{chip.vector_cores} of {chip.vector_width}",
            "gap": found.certificate.gap,
        }
    if isinstance(found, WaferAnswer):
        mapped = found.best.models[0]
        return {
            "samples/s": found.throughput_samples_per_s,
            "MFU": mapped.mfu,
            "step s": mapped.placement.step_time_s,
            "gap": found.certificate.gap,
        }
    if isinstance(found, MappingAnswer):
        return {"samples/s": found.samples_per_s, "MFU": found.mfu, "step s": found.step_time_s}
    raise AtollError(f"an answer of kind {getattr(found, 'kind', '?')} has no figures to compare")


def asked_of(found: Answer) -> Figures:
    """What was asked, by name."""
    if isinstance(found, PlanAnswer | EstimateAnswer):
        given = {n: _plain(value) for n, value in found.question.items() if n not in _ASKED_AS}
        return {name: getattr(found, name) for name in _ASKED} | given
    if isinstance(found, SearchAnswer | WaferAnswer):
        return {name: _plain(value) for name, value in found.job.items()}
    if isinstance(found, MappingAnswer):
        return {"model": found.model}
    raise AtollError(f"an answer of kind {getattr(found, 'kind', '?')} has nothing to compare")


def unasked_of(found: Answer) -> Figures:
    """What holds where nothing was asked, by name."""
    if not isinstance(found, PlanAnswer | EstimateAnswer):
        return {}
    kind = PlanQuestion if isinstance(found, PlanAnswer) else EstimateQuestion
    return {
        name: _plain(list(info.default) if isinstance(info.default, tuple) else info.default)
        for name, info in kind.model_fields.items()
        if not info.is_required()
    }


def shape_of(found: Answer) -> Figures:
    """The configuration of the model, by name; nothing where the answer does not keep it."""
    shape = found.configuration if isinstance(found, PlanAnswer | EstimateAnswer) else {}
    return {f"model.{name}": value for name, value in shape.items()}


def _plain(value: JsonValue) -> JsonValue:
    """A list of models by their names, of one value by itself."""
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], Mapping):
        return value[0]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return ", ".join(str(item.get("name", item)) for item in value if isinstance(item, Mapping))
    return value
