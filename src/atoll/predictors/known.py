"""The predictors by name: ours, and those of other packages."""

from __future__ import annotations

from atoll.predictors.llm_analysis import LLM_ANALYSIS
from atoll.predictors.predictor import Asked, Predicted, Predictor
from atoll.predictors.rules import ROOFLINE, RULE_OF_THUMB
from atoll.registry import Registry
from atoll.training.estimate import Estimator
from atoll.validation.rows import predicted_peak_bytes


def _atoll(asked: Asked) -> Predicted:
    found = Estimator(asked.run).estimate(asked.layout)
    return Predicted(
        found.step.time_s, predicted_peak_bytes(asked.counted, found.memory), found.fits
    )


ATOLL = Predictor("atoll", _atoll, "the estimate of `atoll estimate`, all of a row in words read")
PREDICTORS: Registry[Predictor] = Registry(
    "predictors", Predictor, (ATOLL, RULE_OF_THUMB, ROOFLINE, LLM_ANALYSIS)
)
