"""Compiled: collectives on a mesh; `docs/wafer.md` has the formulas.

A group is given by digits (`digits.py`): those in which its members differ are bits of `member`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.jit import entry, kernel

AUTO, LINE, RING, TWO_D = range(4)


class Wires(NamedTuple):
    """The digits of a rectangle, and the links between its dies."""

    radix: NDArray[np.int64]
    axis: NDArray[np.int64]
    stride: NDArray[np.int64]
    bandwidth_Bps: float
    latency_s: float
    runs: NDArray[np.int64]
    """Scratch of `pass_s`: (3, 8)."""


@kernel
def with_scratch(wires):
    """Copy the wires with separate scratch arrays, for one thread."""
    runs = np.zeros((3, 8), np.int64)
    return Wires(wires.radix, wires.axis, wires.stride, wires.bandwidth_Bps, wires.latency_s, runs)


@kernel
def pass_s(member, volume, wires, algorithm):
    """Seconds of an all-gather (or reduce-scatter) over the member digits (bits of `member`).

    `volume` is the gathered (or partial) bytes of one die. Member digits that follow each other on
    an axis are one line; a line whose neighbours lie `stride` apart shares its links with
    `stride` - 1 others, so that every link carries `stride` times the load.
    """
    if member == 0 or volume <= 0.0:
        return 0.0
    radix, axis, stride = wires.radix, wires.axis, wires.stride
    bandwidth, latency = wires.bandwidth_Bps, wires.latency_s
    lengths, strides, axes = wires.runs[0], wires.runs[1], wires.runs[2]
    runs = 0
    open_run = False
    for d in range(radix.shape[0]):
        if member >> d & 1:
            if open_run and axes[runs - 1] == axis[d]:
                lengths[runs - 1] *= radix[d]
                strides[runs - 1] = stride[d]
            else:
                lengths[runs] = radix[d]
                strides[runs] = stride[d]
                axes[runs] = axis[d]
                runs += 1
            open_run = True
        else:
            open_run = False
    # Lines one after the other, the widest strides while there is least data.
    for i in range(1, runs):
        j = i
        while j > 0 and strides[j] > strides[j - 1]:
            strides[j], strides[j - 1] = strides[j - 1], strides[j]
            lengths[j], lengths[j - 1] = lengths[j - 1], lengths[j]
            axes[j], axes[j - 1] = axes[j - 1], axes[j]
            j -= 1
    later = volume
    best = 0.0
    for i in range(runs - 1, -1, -1):
        hops = float((lengths[i] - 1) * strides[i])
        later /= lengths[i]
        best += hops * (later / bandwidth + latency)
    if runs != 2 or axes[0] == axes[1] or algorithm == LINE:
        return best
    a = float(lengths[0])
    b = float(lengths[1])
    even = lengths[0] % 2 == 0 or lengths[1] % 2 == 0
    if even and algorithm != TWO_D and strides[0] == 1 and strides[1] == 1:
        dies = a * b
        best = min(best, (dies - 1.0) * (volume / (2.0 * dies) / bandwidth + latency))
    if algorithm == RING:
        return best
    half = 0.5 * volume / bandwidth
    hop_a = (a - 1.0) * strides[0]
    hop_b = (b - 1.0) * strides[1]
    first = max(hop_a, hop_b) * (half / (a * b) + latency)
    second = max(hop_a * (half / a + latency), hop_b * (half / b + latency))
    return min(best, first + second)


@kernel
def exchange_s(member, volume, wires):
    """Seconds of an all-to-all of `volume` bytes per die: the bisection of its widest axis."""
    load_x = 0.0
    load_y = 0.0
    hops = 0.0
    length = np.int64(1)
    radix, axis, stride = wires.radix, wires.axis, wires.stride
    for d in range(radix.shape[0]):
        if member >> d & 1:
            length *= radix[d]
            last = d + 1 == radix.shape[0] or not member >> (d + 1) & 1 or axis[d + 1] != axis[d]
            if last:
                across = float((length // 2) * (length - length // 2)) / float(length) * stride[d]
                if axis[d] == 0:
                    load_x += across
                else:
                    load_y += across
                hops += float((length - 1) * stride[d])
                length = np.int64(1)
    return max(load_x, load_y) * volume / wires.bandwidth_Bps + hops * wires.latency_s


@kernel
def _bits(member):
    bits = np.int64(0)
    for d in range(member.shape[0]):
        if member[d]:
            bits |= np.int64(1) << d
    return bits


@entry
def pass_flags(member, volume, wires, algorithm):
    """`pass_s` for callers in Python, with one flag per digit."""
    return pass_s(_bits(member), volume, with_scratch(wires), algorithm)


@entry
def pass_rows(member, volume, wires, algorithm, seconds):
    """`pass_s` for each row of flags and its volume."""
    wires = with_scratch(wires)
    for i in range(member.shape[0]):
        seconds[i] = pass_s(_bits(member[i]), volume[i], wires, algorithm)


@entry
def exchange_flags(member, volume, wires):
    """`exchange_s` for callers in Python, with one flag per digit."""
    return exchange_s(_bits(member), volume, wires)
