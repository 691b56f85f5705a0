"""The fields of an answer that comparisons show: question and figures."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from atoll.answers.answer import Answer
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import MappingAnswer, WaferAnswer
from atoll.base.errors import AtollError
from atoll.questions import EstimateQuestion, PlanQuestion

Figures = dict[str, JsonValue]
GIB = 2**30
_QUESTION_FIELDS = (
    "model", "device", "devices", "network", "sequence", "global_batch", "stack", "states",
    "precision", "attention", "imbalance", "power_cap_W", "site",
)  # fmt: skip
_QUESTION_NAMES = {*_QUESTION_FIELDS, "batch", "optimizer", "power_cap", "kind"}
"""These fields as a question names them."""


def result_figures(answer: Answer) -> Figures:
    """Return the figures of an answer by name; plots show the first."""
    if isinstance(answer, PlanAnswer | EstimateAnswer):
        run = answer.whole_run
        return {
            "tokens/s per device": answer.tokens_per_s_per_device,
            "step s": answer.step_time_s,
            "low s": answer.interval.step_time_s.low,
            "high s": answer.interval.step_time_s.high,
            "MFU %": 100 * answer.mfu,
            **({} if answer.power_W is None else {"device W": answer.power_W}),
            **({} if answer.energy_per_token_J is None else {"J/token": answer.energy_per_token_J}),
            "memory GiB": answer.memory_bytes.needed / GIB,
            "fits": answer.fits,
            **({"tight": True} if answer.memory_bytes.tight else {}),
            **({"proven": answer.certificate.proven} if isinstance(answer, PlanAnswer) else {}),
            **({} if run is None else {"days": run.days, "device-hours": run.device_hours}),
            **({} if run is None or run.dollars is None else {"dollars": run.dollars}),
            "layout": answer.layout_words,
        }
    if isinstance(answer, SearchAnswer):
        chip, model = answer.best.accelerator, answer.best.models[0]
        return {
            "samples/s": answer.throughput_samples_per_s,
            "area mm2": chip.area_mm2,
            "peak W": chip.peak_power_W,
            "peak TFLOP/s": chip.peak_TFLOPs,
            "HBM GiB": chip.hbm_GiB,
            "MFU %": 100 * model.mfu,
            "step s": model.placement.step_time_s,
            "tensor cores": f"{chip.tensor_cores} of {chip.width}x{chip.depth}",
            "vector cores": f"{chip.vector_cores} of {chip.vector_width}",
            "gap %": 100 * answer.certificate.gap,
        }
    if isinstance(answer, WaferAnswer):
        mapped = answer.best.models[0]
        return {
            "samples/s": answer.throughput_samples_per_s,
            "MFU %": 100 * mapped.mfu,
            "step s": mapped.placement.step_time_s,
            "gap %": 100 * answer.certificate.gap,
        }
    if isinstance(answer, MappingAnswer):
        return {
            "samples/s": answer.samples_per_s,
            "MFU %": 100 * answer.mfu,
            "step s": answer.step_time_s,
        }
    raise AtollError(f"an answer of kind {getattr(answer, 'kind', '?')} has no figures to compare")


def question_fields(answer: Answer) -> Figures:
    """Return the fields of the question by name."""
    if isinstance(answer, PlanAnswer | EstimateAnswer):
        fields = {n: _plain(v) for n, v in answer.question.items() if n not in _QUESTION_NAMES}
        return {name: getattr(answer, name) for name in _QUESTION_FIELDS} | fields
    if isinstance(answer, SearchAnswer | WaferAnswer):
        return {name: _plain(value) for name, value in answer.job.items()}
    if isinstance(answer, MappingAnswer):
        return {"model": answer.model}
    raise AtollError(f"an answer of kind {getattr(answer, 'kind', '?')} has nothing to compare")


def default_fields(answer: Answer) -> Figures:
    """Return the defaults of the question's fields by name."""
    if not isinstance(answer, PlanAnswer | EstimateAnswer):
        return {}
    kind = PlanQuestion if isinstance(answer, PlanAnswer) else EstimateQuestion
    return {
        name: _plain(list(info.default) if isinstance(info.default, tuple) else info.default)
        for name, info in kind.model_fields.items()
        if not info.is_required()
    }


def model_shape(answer: Answer) -> Figures:
    """Return the configuration of the model by name; empty where the answer has none."""
    shape = answer.configuration if isinstance(answer, PlanAnswer | EstimateAnswer) else {}
    return {f"model.{name}": value for name, value in shape.items()}


def _plain(value: JsonValue) -> JsonValue:
    """Return a list of models as names, a list of a single value as that value."""
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], Mapping):
        return value[0]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return ", ".join(str(item.get("name", item)) for item in value if isinstance(item, Mapping))
    return value
