"""Questions whose answers are on record: small ones to every program, each with its golden file.

A golden is the answer as the programs write it (`to_dict`), without times of this machine and
without what only repeats the question. An answer may have more than its golden, never less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import atoll
from atoll.questions import WaferLayout as Layout
from atoll.questions import WaferQuestion
from atoll.wafer.estimate import estimate_wafer
from atoll.wafer.run import search_wafer

FILES = Path(__file__).parent / "files"
GOLDENS = Path(__file__).parent / "goldens"
SPACE = str(FILES / "space.yaml")
WAFER = str(FILES / "wafer.yaml")
SMALL = str(FILES / "config.json")
TABLES = Path(__file__).parents[1] / "data" / "phaze_dp_cases"

LEFT_OUT = {
    "bounded_per_s", "job", "layers", "phases_s", "picture", "runners_up", "wall_time_s",
    "wafer", "reasons", "notes", "expected_error", "interval", "summary", "version",
}  # fmt: skip
"""Times of this machine, sentences, what repeats the question, errors of other runs, releases."""

Answer = dict[str, Any]


def kept(value: Any) -> Any:
    """The part of an answer that goes into its golden."""
    if isinstance(value, dict):
        return {str(k): kept(v) for k, v in value.items() if k not in LEFT_OUT}
    if isinstance(value, (list, tuple)):
        return [kept(v) for v in value]
    if isinstance(value, str):  # a checkout may lie anywhere
        return value.replace(f"{FILES}/", "")
    return value


def _search(**changes: Any) -> Answer:
    chosen = {
        "model": "bert-large", "devices": 64, "batch": 512, "microbatch": (1, 2, 4),
        "tp": (1, 2), "space": SPACE, "baselines": False,
    }  # fmt: skip
    return atoll.search(**(chosen | changes)).to_dict()


def _estimate(model: str, device: str, devices: int, **layout: Any) -> Answer:
    return atoll.estimate(model, device, devices, **layout).to_dict()


def _plan(model: str, device: str, devices: int, **asked: Any) -> Answer:
    return atoll.plan(model, device, devices, **asked).to_dict()


def _wafer(**changes: Any) -> Answer:
    chosen = {
        "wafer": WAFER, "model": SMALL, "batch": 16, "sequence": 256, "microbatch": (1, 2),
        "baselines": False,
    }  # fmt: skip
    return search_wafer(WaferQuestion.of(**(chosen | changes))).to_dict()


def _wafer_estimate(layout: Layout, **changes: Any) -> Answer:
    return estimate_wafer(
        wafer=WAFER, model=SMALL, batch=16, sequence=256, layout=layout, **changes
    ).to_dict()


def _place(case: str) -> Answer:
    return atoll.place(TABLES / f"{case}.in.json").to_dict()


SEARCHES = {
    "search-bert": {},
    "search-tensor-wide": {"tp": (2, 4)},
    "search-tensor-none": {"tp": (1,)},
    "search-recompute-none": {"recompute": "none"},
    "search-recompute-full": {"recompute": "full"},
    "search-zero-0": {"zero": (0,)},
    "search-sgd": {"optimizer": "sgd"},
    "search-flat-network": {"network": "flat-4gib"},
    "search-max-area": {"max_area": "60 mm2"},
    "search-max-power": {"max_power": "120 W"},
    "search-hbm": {"hbm": ("32 GiB",)},
    "search-worst-of-two": {"model": ("bert-large", "opt-350m"),
                            "objective": "worst"},
    "search-vision": {"model": "vit-l16", "devices": 8, "batch": 32},
    "search-gpt2": {"model": "gpt2-xl", "devices": 32, "batch": 64},
    "search-pareto": {"pareto": True},
    "search-exact": {"tolerance": 0.0},
    "search-default": {"space": None, "devices": 16, "batch": 64, "microbatch": (4,), "tp": (1,)},
    "search-default-small": {"space": None, "devices": 8, "batch": 32, "baselines": True,
                             "max_area": "260 mm2", "max_power": "150 W"},
    "search-physical-3nm": {"space": None, "template": "physical-3nm", "model": "gpt2-xl",
                            "devices": 8, "batch": 32, "microbatch": (1,), "tp": (1,),
                            "max_area": "200 mm2"},
    "search-with-baselines": {"baselines": True, "space": "phaze", "devices": 8,
                              "batch": 32, "max_area": "20 mm2"},
    "search-phaze": {"profile": "phaze"},
    "search-phaze-tensor": {"profile": "phaze", "tp": (2, 4)},
    "search-phaze-none": {"profile": "phaze", "recompute": "none"},
    "search-phaze-strategy": {"profile": "phaze", "strategy": "phaze"},
}  # fmt: skip

ESTIMATES = {
    "estimate-one-device": ("bert-large", "h200", 1, {"batch": 8}),
    "estimate-data": ("gpt2-xl", "h100", 8, {"batch": 32}),
    "estimate-tensor": ("llama2-7b", "h100", 8, {"tp": 8, "batch": 32}),
    "estimate-no-sp": ("llama2-7b", "h100", 8, {"tp": 8, "batch": 32, "sp": False}),
    "estimate-1f1b": ("llama2-7b", "a100-80", 16, {"tp": 2, "pp": 4, "batch": 64}),
    "estimate-interleaved": ("llama2-7b", "a100-80", 16,
                             {"tp": 2, "pp": 4, "vpp": 4, "batch": 64}),
    "estimate-gpipe": ("llama2-7b", "a100-80", 16,
                       {"tp": 2, "pp": 4, "order": "gpipe", "batch": 64}),
    "estimate-zb-h1": ("llama2-7b", "a100-80", 16,
                       {"tp": 2, "pp": 4, "order": "zb-h1", "batch": 64}),
    "estimate-zb-h2": ("llama2-7b", "a100-80", 16,
                       {"tp": 2, "pp": 4, "order": "zb-h2", "batch": 64}),
    "estimate-zb-h1-few": ("llama3-70b", "h100", 64,
                           {"tp": 8, "pp": 8, "order": "zb-h1", "batch": 4}),
    "estimate-zb-v": ("llama2-7b", "a100-80", 16,
                      {"tp": 2, "pp": 4, "order": "zb-v", "batch": 64}),
    "estimate-dualpipe": ("deepseek-v3", "h200", 256,
                          {"pp": 8, "ep": 32, "order": "dualpipe", "batch": 256}),
    "estimate-interleaved-odd": ("llama2-7b", "a100-80", 16,
                                 {"tp": 2, "pp": 4, "vpp": 2, "batch": 14}),
    "estimate-hsdp": ("llama3-70b", "h100", 64,
                      {"zero": 3, "hsdp": 4, "stack": "fsdp", "recompute": "full",
                       "batch": 64}),
    "estimate-uneven-stages": ("llama2-7b", "h100", 24,
                               {"tp": 2, "pp": 3, "batch": 48}),
    "estimate-context": ("llama3-8b", "h100", 16,
                         {"tp": 2, "cp": 4, "batch": 16, "sequence": 32768}),
    "estimate-experts": ("mixtral-8x7b", "h100", 32,
                         {"tp": 2, "ep": 8, "batch": 64}),
    "estimate-many-experts": ("deepseek-v3", "h200", 256,
                              {"pp": 8, "ep": 32, "batch": 256}),
    "estimate-zero-0": ("llama3-8b", "h200", 8, {"zero": 0, "tp": 4, "batch": 16}),
    "estimate-zero-2": ("llama3-8b", "h200", 16, {"zero": 2, "batch": 64}),
    "estimate-zero-3": ("llama3-8b", "h200", 16,
                        {"zero": 3, "stack": "fsdp", "batch": 64}),
    "estimate-recompute-full": ("llama3-8b", "a100-80", 8,
                                {"zero": 3, "recompute": "full", "batch": 16}),
    "estimate-recompute-selective": ("gpt3-175b", "a100-80", 128,
                                     {"tp": 8, "pp": 8, "recompute": "selective",
                                      "batch": 64}),
    "estimate-recompute-optimal": ("llama3-70b", "h100", 64,
                                   {"tp": 8, "pp": 4, "recompute": "optimal",
                                    "batch": 32}),
    "estimate-fp8": ("llama3-8b", "h100", 8,
                     {"precision": "fp8", "tp": 2, "stack": "nemo", "batch": 16}),
    "estimate-eager": ("opt-350m", "v100", 8,
                       {"stack": "eager", "attention": "unfused", "batch": 32}),
    "estimate-compiled": ("llama2-7b", "mi300x", 8,
                          {"stack": "compiled", "optimizer": "bf16", "batch": 16}),
    "estimate-xla": ("llama2-7b", "tpu-v4", 64,
                     {"stack": "xla", "tp": 4, "batch": 64}),
    "estimate-encoder-decoder": ("t5-3b", "a100-80", 8, {"tp": 2, "batch": 16}),
}  # fmt: skip

PLANS = {
    "plan-gpt2": ("gpt2-xl", "h100", 8, {"batch": 32}),
    "plan-llama": ("llama2-7b", "a100-80", 16, {"batch": 64}),
    "plan-llama-wide": ("llama2-7b", "h100", 16,
                        {"batch": 32, "zero": (0, 1, 2, 3), "microbatch": (1, 2),
                         "recompute": ("none", "selective", "full", "optimal")}),
    "plan-zero-bubble": ("llama2-7b", "h100", 16,
                         {"batch": 32, "order": ("1f1b", "zb-h1", "zb-h2")}),
    "plan-every-order": ("llama2-7b", "h100", 16,
                         {"batch": 24, "pp": (2, 4), "hsdp": (1, 2), "microbatch": (1,),
                          "order": ("1f1b", "zb-v", "dualpipe")}),
    "plan-experts": ("mixtral-8x7b", "h200", 16, {"batch": 32, "microbatch": (1,)}),
    "plan-fsdp": ("llama3-8b", "h200", 8,
                  {"batch": 16, "stack": "fsdp", "pp": (1,), "cp": (1,)}),
    "plan-long": ("llama3-8b", "h100", 16, {"batch": 16, "sequence": 32768,
                                            "microbatch": (1,)}),
    "plan-tpu": ("llama2-7b", "tpu-v4", 64, {"batch": 64, "stack": "xla"}),
}  # fmt: skip

WAFERS = {
    "wafer-search": {},
    "wafer-no-recompute": {"ablations": ("no-recompute",)},
    "wafer-one-stage": {"stage_counts": (1,)},
    "wafer-with-baselines": {"baselines": True},
    "wafer-odd-batch": {"batch": 15},
}

TABLE_CASES = {
    "place-llama": "10_llama2_7b_32L_t1248_AR_64dev_bw100",
    "place-uneven": "13_uneven_random40_37dev_mbs100",
    "place-one-microbatch": "18_one_microbatch_slow_net",
}

QUESTIONS: dict[str, Callable[[], Answer]] = {
    **{name: partial(_search, **asked) for name, asked in SEARCHES.items()},
    **{
        name: partial(_estimate, model, device, devices, **layout)
        for name, (model, device, devices, layout) in ESTIMATES.items()
    },
    **{
        name: partial(_plan, model, device, devices, **asked)
        for name, (model, device, devices, asked) in PLANS.items()
    },
    **{name: partial(_wafer, **asked) for name, asked in WAFERS.items()},
    "wafer-estimate": partial(_wafer_estimate, Layout(rectangle=(2, 1), stages=4)),
    **{name: partial(_place, case) for name, case in TABLE_CASES.items()},
}
