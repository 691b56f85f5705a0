"""Event loop of a pipeline's replay: plain arithmetic on flat arrays.

It runs as Python for few passes and compiled (`atoll.base.jit`) for many, with bit-identical
results, so it takes lists as well as arrays and allocates nothing.
"""

from __future__ import annotations

NOT_YET = -1.0


def replay_rows(
    rows, stages, length, time_at, input_at, wait_at, output_at, link_at, delay_at, times_s,
    waits_s, delays_s, spans, arrived_s, clock_s, first_s, free_s, position, start_s, end_s, step_s,
):  # fmt: skip
    """Replay pipelines of one shape; write the seconds of each row into `step_s` (rows,).

    Indices (stages, length) per pass in execution order, -1 for none:
    `time_at`: its seconds in a row of `times_s`; `input_at`: its input in `arrived_s`;
    `wait_at`: the seconds the device waits for that message, in a row of `waits_s`;
    `output_at`: its output in `arrived_s`; `link_at`: the link that carries the output, one message
    at a time; `delay_at`: the seconds on that link, in a row of `delays_s`.
    With `spans` a step lasts from the first to the last pass of the longest stage, otherwise from
    the first pass of all stages to the last. `start_s` and `end_s` (stages, length), if not empty,
    receive the times of all passes.
    Work space: `arrived_s`, `clock_s`, `first_s`, `position` (stages,), `free_s` (links,).
    """
    records = len(start_s)
    per_row = len(times_s) // rows
    per_stage = 2 * stages
    for row in range(rows):
        for i in range(len(arrived_s)):
            arrived_s[i] = NOT_YET
        for i in range(len(free_s)):
            free_s[i] = 0.0
        for s in range(stages):
            clock_s[s] = 0.0
            first_s[s] = NOT_YET
            position[s] = s * length
        left, earlier = stages * length, -1
        while left and left != earlier:
            earlier = left
            for s in range(stages):
                at, now_s, end = position[s], clock_s[s], (s + 1) * length
                while at < end:
                    needed = input_at[at]
                    begin_s = now_s
                    if needed >= 0:
                        ready_s = arrived_s[needed]
                        if ready_s < 0.0:
                            break
                        begin_s = max(begin_s, ready_s)
                    now_s = begin_s + times_s[row * per_row + time_at[at]]
                    if wait_at[at] >= 0:
                        now_s += waits_s[row * per_stage + wait_at[at]]
                    if first_s[s] < 0.0:
                        first_s[s] = begin_s
                    if records:
                        start_s[at] = begin_s
                        end_s[at] = now_s
                    output = output_at[at]
                    if output >= 0:
                        sent_s = now_s
                        link = link_at[at]
                        if link >= 0:
                            sent_s = max(sent_s, free_s[link])
                            sent_s += delays_s[row * per_stage + delay_at[at]]
                            free_s[link] = sent_s
                        arrived_s[output] = sent_s
                    at += 1
                    left -= 1
                position[s] = at
                clock_s[s] = now_s
        longest_s = NOT_YET
        if not left:
            for s in range(stages):
                longest_s = max(longest_s, clock_s[s] - (first_s[s] if spans else 0.0))
        step_s[row] = longest_s
    return 0
