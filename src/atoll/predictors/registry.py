"""Registry of predictors: Atoll's, and those of other packages."""

from __future__ import annotations

from atoll.base.registry import Registry
from atoll.predictors.llm_analysis import LLM_ANALYSIS
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.rules import ROOFLINE, RULE_OF_THUMB
from atoll.training.estimate import Estimator
from atoll.validation.row_runs import predicted_peak_bytes


def _atoll(job: Asked) -> Predicted:
    estimate = Estimator(job.run).estimate(job.layout)
    peak_bytes = predicted_peak_bytes(job.counted, estimate.memory)
    return Predicted(estimate.step.time_s, peak_bytes, estimate.fits)


ATOLL = Predictor("atoll", _atoll, "the estimate of `atoll estimate`, all of a row in words read")
PREDICTORS: Registry[Predictor] = Registry(
    "predictors", Predictor, (ATOLL, RULE_OF_THUMB, ROOFLINE, LLM_ANALYSIS)
)
