"""Loops of a pipeline's replay: plain arithmetic on arrays.

They run as Python for few passes and compiled (`atoll.base.jit`) for many, with bit-identical
results, so they take lists as well as arrays and allocate nothing.
"""

from __future__ import annotations


def execution_order(input_at, output_at, arrived, position, ends, ordered):
    """Write the passes in an order in which every input arrives before it is needed; return how
    many have such an order.

    `input_at` and `output_at` (passes,): inputs and outputs in `arrived`, whose entries are 0 but
    for the last but one, which passes without an input need. The passes of a stage are those from
    `position` to `ends` (stages,), in their order.
    """
    count, earlier = 0, -1
    while count != earlier:
        earlier = count
        for s in range(len(ends)):
            at, end = position[s], ends[s]
            while at < end and arrived[input_at[at]]:
                arrived[output_at[at]] = 1
                ordered[count] = at
                count += 1
                at += 1
            position[s] = at
    return count


def replay_rows(
    stage_at, time_at, input_at, wait_at, output_at, link_at, delay_at, times_s, waits_s, delays_s,
    spans, arrived_s, clock_s, first_s, free_s, start_s, end_s, step_s,
):  # fmt: skip
    """Replay pipelines of one shape; write the seconds of each row into `step_s` (rows,).

    Indices (passes,) in an order in which every input arrives before it is needed:
    `stage_at`: the stage of a pass; `time_at`: its seconds in a row of `times_s`;
    `input_at`: its input in `arrived_s`, whose last but one entry is always 0;
    `wait_at`: the seconds the device waits for that message, in a row of `waits_s`;
    `output_at`: its output in `arrived_s`; `link_at`: the link that carries the output, one message
    at a time, or -1; `delay_at`: the seconds on that link, in a row of `delays_s`.
    With `spans` a step lasts from the first to the last pass of the longest stage, otherwise from
    the first pass of all stages to the last. `start_s` and `end_s` (passes,), if not empty,
    receive the times of all passes.
    Work space: `arrived_s`, `clock_s` and `first_s` (stages,), `free_s` (links,).
    """
    records = len(start_s)
    for row in range(len(step_s)):
        pass_s, wait_s, delay_s = times_s[row], waits_s[row], delays_s[row]
        for i in range(len(free_s)):
            free_s[i] = 0.0
        for s in range(len(clock_s)):
            clock_s[s] = 0.0
            first_s[s] = -1.0
        at = 0
        for s, time, needed, wait, output, link, delay in zip(  # noqa: B905  (not in numba)
            stage_at, time_at, input_at, wait_at, output_at, link_at, delay_at
        ):
            now_s, ready_s = clock_s[s], arrived_s[needed]
            if ready_s > now_s:
                now_s = ready_s
            if spans and first_s[s] < 0.0:
                first_s[s] = now_s
            if records:
                start_s[at] = now_s
            now_s = now_s + pass_s[time] + wait_s[wait]
            clock_s[s] = now_s
            if records:
                end_s[at] = now_s
                at += 1
            if link >= 0:
                if free_s[link] > now_s:
                    now_s = free_s[link]
                now_s += delay_s[delay]
                free_s[link] = now_s
            arrived_s[output] = now_s
        longest_s = 0.0
        for s in range(len(clock_s)):
            longest_s = max(longest_s, clock_s[s] - (first_s[s] if spans else 0.0))
        step_s[row] = longest_s
    return 0
