"""A user's script, which mypy checks in strict mode (tests/test_public.py) and nothing runs."""

from pathlib import Path

import atoll

plan = atoll.plan("llama3-70b", "h100", 512, batch=1024, sequence="8k")
tensor_width: int = plan.best.layout.tp
fits: bool = plan.best.fits
step_s: float = plan.best.step_time_s
needed_bytes: float = plan.answer.memory_bytes.needed
launch_file: Path = plan.export("torchtitan").save("train.py")
page: Path = plan.report("plan.html")

estimate = atoll.estimate("llama3-70b", "h100", 512, tp=8, pp=4, batch=1024)
low_s, high_s = estimate.interval.step_time_s.low, estimate.interval.step_time_s.high
columns: list[str] = plan.compare(estimate).to_dataframe().columns.tolist()

chip = atoll.search(model="bert-large", devices=64, max_area="300 mm2")
area_mm2: float = chip.answer.best.accelerator.area_mm2

question = atoll.EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64)
swept = atoll.sweep(question, devices=[8, 16])
rows: int = len(swept.to_dataframe())
swept.chart("step s").save("steps.svg")
atoll.compare(plan, estimate, "runs/earlier").chart().save("compared.svg")

checked = atoll.check("pretrain.sh", device="h100", price=2.0)
if checked.better is not None:
    print(checked.better.layout, checked.better.saved_percent)

try:
    atoll.plan("llama3-70b", "h100", 8, batch=64, recompute="none", zero=3)
except atoll.InfeasibleError as error:
    print(error)

atoll.plan("llama3-70b", "h100", 8, batch=64, tpp=2)  # type: ignore[call-overload]
atoll.estimate("llama3-70b", "h100", 8, batch=64, zero=7)  # type: ignore[call-overload]
