"""Devices and networks of one's own, as the examples write them."""

from __future__ import annotations

from pathlib import Path

from atoll.api import estimate

EXAMPLES = Path(__file__).parents[2] / "examples/devices"


def test_the_examples_of_a_device_and_of_a_cluster_are_priced() -> None:
    wide = {"tp": 8, "pp": 8, "batch": 512}
    usual = estimate("llama3-70b", "h100", 512, **wide)  # type: ignore[arg-type]
    pods = estimate("llama3-70b", "h100", 512, network=EXAMPLES / "pods.yaml", **wide)  # type: ignore[arg-type]
    own = estimate("llama3-70b", EXAMPLES / "h20.yaml", 512, **wide)  # type: ignore[arg-type]
    # Two pods: stages send, and replicas reduce, over the slower spine.
    assert usual.step.time_s < pods.step.time_s < 1.5 * usual.step.time_s
    assert 4 * usual.step.time_s < own.step.time_s < 8 * usual.step.time_s
