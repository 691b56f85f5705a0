"""Counting over all designs at once, compiled.

Not a `*_kernels.py`: those are part of the identity of a stored search, which does not depend on
how it is looked at. All of it is in one file, so that numba sees every edit.
"""

from __future__ import annotations

from atoll.jit import entry


@entry
def count_bars(codes, bad, own, counts):
    """Designs in each bar of each column: those that fail no filter but the column's own.

    `codes` (designs, columns) are bars, `bad` (filters, designs) says who fails, `own` is each
    filter's column or -1. Returns how many designs fail none.
    """
    passed = 0
    for i in range(codes.shape[0]):
        fails = 0
        which = -1
        for f in range(bad.shape[0]):
            if bad[f, i]:
                fails += 1
                which = f
                if fails > 1:
                    break
        if fails == 0:
            passed += 1
            for c in range(codes.shape[1]):
                counts[c, codes[i, c]] += 1
        elif fails == 1 and own[which] >= 0:
            c = own[which]
            counts[c, codes[i, c]] += 1
    return passed


@entry
def extent(mask, x, y, ends):
    """Least and greatest x and y of the designs that pass and have both; returns how many."""
    count = 0
    for i in range(len(mask)):
        if mask[i] and x[i] == x[i] and y[i] == y[i]:
            if count == 0:
                ends[0] = ends[1] = x[i]
                ends[2] = ends[3] = y[i]
            ends[0] = min(ends[0], x[i])
            ends[1] = max(ends[1], x[i])
            ends[2] = min(ends[2], y[i])
            ends[3] = max(ends[3], y[i])
            count += 1
    return count


@entry
def fill_cells(mask, x, y, score, ends, counts, best):
    """Designs in each cell (across, up), and the position of the best by score, or the first."""
    wide, high = counts.shape
    across = wide / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.0
    up = high / (ends[3] - ends[2]) if ends[3] > ends[2] else 0.0
    for i in range(len(mask)):
        if mask[i] and x[i] == x[i] and y[i] == y[i]:
            a = min(int((x[i] - ends[0]) * across), wide - 1)
            b = min(int((y[i] - ends[2]) * up), high - 1)
            counts[a, b] += 1
            known = best[a, b]
            if known < 0 or score[i] > score[known]:
                best[a, b] = i


@entry
def walk_front(order, mask, cost, gain, kept):
    """Along the designs from the greatest gain on: those that cost less than all before."""
    count = 0
    for k in range(len(order)):
        i = order[k]
        if not mask[i] or cost[i] != cost[i] or gain[i] != gain[i]:
            continue
        if count > 0 and not cost[i] < cost[kept[count - 1]]:
            continue
        if count > 0 and gain[i] == gain[kept[count - 1]]:
            count -= 1  # as good and cheaper
        kept[count] = i
        count += 1
    return count
