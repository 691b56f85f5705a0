"""How many devices a run needs for a deadline or a budget: plans for 1, 2, 4, ... devices."""

from __future__ import annotations

from atoll import api
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.base.streams import say
from atoll.hardware.device import load_device
from atoll.questions import PlanQuestion
from atoll.step.length import DAY_S, WholeRun, format_time
from atoll.training.planner.plan import Plan
from atoll.workload import load_model
from atoll.workload.flops import model_flops

MOST_DOUBLINGS = 17


def with_devices(question: PlanQuestion, stop: Stop | None = None) -> PlanQuestion:
    """Return the question with the fewest devices that meet its deadline, at most for its budget;
    without a deadline with the most devices that its budget pays."""
    deadline_s, budget = question.deadline or float("inf"), question.budget or float("inf")
    unsized = question.changed(deadline=None, budget=None, devices=1)
    chosen, best_words, problem, other = 0, "", "", ""
    for doubling in range(MOST_DOUBLINGS):
        devices = 1 << doubling
        if _least_days(question, devices) * DAY_S > deadline_s:
            continue
        sized = unsized.changed(devices=devices)
        try:
            plan = api.plan(job=sized, stop=stop)
        except AtollError as error:  # does not fit, or the batch does not divide
            problem = other = str(error)
            if best_words:
                break
            continue
        run = plan.best.whole_run if isinstance(plan, Plan) else None
        assert run is not None  # a deadline or a budget needs tokens
        if (run.dollars or 0.0) <= budget and run.days * DAY_S <= deadline_s:
            chosen = devices
            if question.deadline is not None:
                break
        else:
            other = _words(devices, run)
            if question.deadline is None and best_words:
                break
        best_words = _words(devices, run)
    if not chosen:
        tried = f"{best_words} is the nearest" if best_words else problem
        limits = [format_time(deadline_s)] if question.deadline else []
        limits += [f"{budget:,.0f} dollars"] if question.budget else []
        raise AtollError(
            f"no number of {question.device} finishes in {' and '.join(limits)}: {tried}; raise "
            "the limit, or choose another --device"
        )
    if other:
        most = "most" if question.deadline is None else "fewest"
        say(f"devices: {chosen:,} {question.device} are the {most} in powers of 2; tried: {other}")
    return unsized.changed(devices=chosen)


def _words(devices: int, run: WholeRun) -> str:
    cost = "" if run.dollars is None else f" and {run.dollars:,.0f} dollars"
    return f"{devices:,} devices ({run.time_words()}{cost})"


def _least_days(question: PlanQuestion, devices: int) -> float:
    """Return the days of the run at the devices' 16-bit peak, which no layout beats; 0 if adapters
    or narrow products could."""
    if question.method == "lora" or question.precision not in (None, "bf16", "fp16"):
        return 0.0
    model, device = load_model(question.model), load_device(question.device)
    sequence = question.sequence or model.sequence
    flops = (question.tokens or 0.0) / sequence * model_flops(model, sequence)
    return flops / (devices * device.peak_flops(device.half_dtype)) / DAY_S
