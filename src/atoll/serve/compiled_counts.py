"""Compiled counting over all designs.

Not a `*_kernels.py`: those are part of the identity of a stored search, which does not depend on
how it is looked at. All of it is in one file, so that numba sees every edit.
"""

from __future__ import annotations

from atoll.base.jit import entry


@entry
def count_bars(codes, failing, filter_columns, counts):
    """Count designs per bar of each column: those that fail no filter except the column's own.

    `codes` (designs, columns): bar indices. `failing` (filters, designs): whether a design fails.
    `filter_columns`: column of each filter or -1. Returns the number of designs that fail none.
    """
    passed = 0
    for design in range(codes.shape[0]):
        failed = 0
        failed_filter = -1
        for filter_index in range(failing.shape[0]):
            if failing[filter_index, design]:
                failed += 1
                failed_filter = filter_index
                if failed > 1:
                    break
        if failed == 0:
            passed += 1
            for column in range(codes.shape[1]):
                counts[column, codes[design, column]] += 1
        elif failed == 1 and filter_columns[failed_filter] >= 0:
            column = filter_columns[failed_filter]
            counts[column, codes[design, column]] += 1
    return passed


@entry
def extent(mask, x, y, ends):
    """Write min and max of x and y over designs that pass and have both; return their count."""
    count = 0
    for design in range(len(mask)):
        if mask[design] and x[design] == x[design] and y[design] == y[design]:
            if count == 0:
                ends[0] = ends[1] = x[design]
                ends[2] = ends[3] = y[design]
            ends[0] = min(ends[0], x[design])
            ends[1] = max(ends[1], x[design])
            ends[2] = min(ends[2], y[design])
            ends[3] = max(ends[3], y[design])
            count += 1
    return count


@entry
def fill_cells(mask, x, y, score, ends, counts, best):
    """Count designs per cell (x, y) and write the position of the best by score, or the first."""
    wide, high = counts.shape
    across = wide / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.0
    up = high / (ends[3] - ends[2]) if ends[3] > ends[2] else 0.0
    for design in range(len(mask)):
        if mask[design] and x[design] == x[design] and y[design] == y[design]:
            cell_x = min(int((x[design] - ends[0]) * across), wide - 1)
            cell_y = min(int((y[design] - ends[2]) * up), high - 1)
            counts[cell_x, cell_y] += 1
            best_so_far = best[cell_x, cell_y]
            if best_so_far < 0 or score[design] > score[best_so_far]:
                best[cell_x, cell_y] = design


@entry
def walk_front(order, mask, cost, gain, front):
    """Walk designs by falling gain and keep those that cost less than all before."""
    count = 0
    for k in range(len(order)):
        design = order[k]
        if not mask[design] or cost[design] != cost[design] or gain[design] != gain[design]:
            continue
        if count > 0 and not cost[design] < cost[front[count - 1]]:
            continue
        if count > 0 and gain[design] == gain[front[count - 1]]:
            count -= 1  # as good and cheaper
        front[count] = design
        count += 1
    return count
