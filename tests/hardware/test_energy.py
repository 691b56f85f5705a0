"""Energy constants and peak power, against the published figures of TPU v4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.hardware.accelerator import Accelerator, Hbm
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.energy import DEFAULT_ENERGY, TPU_V4_IDLE_W, TPU_V4_MAX_W, hbm_power_W
from atoll.hardware.product_space import phaze_space
from atoll.hardware.silicon.chip import peak_power_W

REFERENCE = load_accelerator("phaze-tpuv4")


def test_peak_power_of_the_reference_is_within_30_percent_above_tpu_v4() -> None:
    """An upper bound: everything busy at once, which no measured workload does (192 W)."""
    error = peak_power_W(REFERENCE) / TPU_V4_MAX_W - 1
    assert error == pytest.approx(0.295, abs=0.005)


def test_an_idle_reference_draws_the_published_idle_power() -> None:
    stopped = replace(REFERENCE, clock_Hz=1e-9, hbm=Hbm(32 * 2**30, 1e-9))
    assert peak_power_W(stopped) == pytest.approx(TPU_V4_IDLE_W)


def test_memory_costs_more_the_further_it_is() -> None:
    model = DEFAULT_ENERGY
    assert model.core_buffer_J_per_byte < model.glb_J_per_byte < model.hbm_J_per_byte
    assert model.hbm_J_per_byte < model.link_J_per_byte
    assert model.mac_J < model.vector_op_J  # bf16 multiply against fp32


def test_hbm_power_is_bandwidth_times_energy_unless_stated() -> None:
    assert hbm_power_W(Hbm(2**35, 1.2e12)) == pytest.approx(1.2e12 * 8 * 3.92e-12)
    assert hbm_power_W(Hbm(2**35, 1.2e12, power_W=25.0)) == 25.0


sizes = st.integers(1, 512)


@given(
    st.builds(
        Accelerator,
        tensor_cores=sizes,
        vector_cores=sizes,
        width=sizes,
        depth=sizes,
        vector_width=sizes,
        glb_bytes=st.integers(2**10, 2**28),
        glb_bandwidth_Bpc=st.floats(1, 1e5),
        clock_Hz=st.floats(1e8, 3e9),
        hbm=st.builds(Hbm, st.just(2**35), st.floats(1e11, 1e13), st.floats(0, 100)),
    ),
    st.sampled_from(
        ["tensor_cores", "vector_cores", "width", "depth", "vector_width", "glb_bytes",
         "glb_bandwidth_Bpc", "clock_Hz"]
    ),
)  # fmt: skip
def test_power_grows_with_every_parameter(chip: Accelerator, parameter: str) -> None:
    larger = replace(chip, **{parameter: 2 * getattr(chip, parameter)})
    assert peak_power_W(larger) > peak_power_W(chip)
    faster = replace(chip, hbm=replace(chip.hbm, bandwidth_Bps=2 * chip.hbm.bandwidth_Bps))
    assert peak_power_W(faster) > peak_power_W(chip)


def test_a_whole_space_is_priced_as_its_chips_are() -> None:
    space = phaze_space()
    hbm = replace(space.hbm_options[1], area_mm2=12.0)
    together = space.peak_power_with(hbm)
    sampled = np.arange(0, len(space), 3001)
    one_by_one = [peak_power_W(space.accelerator(int(index), hbm)) for index in sampled]
    np.testing.assert_allclose(together[sampled], one_by_one, rtol=1e-12)
