"""Clusters that are not uniform: pods, each of one device on one network, and the link between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from pydantic import Field, model_validator

from atoll.errors import AtollError
from atoll.fabric.network import Level, Network
from atoll.files.yamlfile import Bandwidth, Count, FileModel, Seconds, Share, load_yaml
from atoll.hardware.catalog import load_network
from atoll.hardware.device import load_device
from atoll.questions.fields import DeviceName, NetworkName
from atoll.training.run import Run
from atoll.units import format_bandwidth

MOST_PODS = 3  # ways to give each of them its blocks grow with their number's power


class PodFile(FileModel):
    """So many of one device."""

    device: DeviceName
    devices: Count
    network: NetworkName | None = None  # the device's


class LinkFile(FileModel):
    """What joins the pods, in each direction: of every device, or in total between two pods."""

    bandwidth: Bandwidth | None = None
    total: Bandwidth | None = None
    latency: Seconds = 0.0
    efficiency: Share = 1.0

    @model_validator(mode="after")
    def _one_rate(self) -> LinkFile:
        if (self.bandwidth is None) == (self.total is None):
            raise ValueError("expected either bandwidth, of every device, or total")
        return self


class PodsFile(FileModel):
    """A cluster; without a link, its pods are parts of one network."""

    name: str = ""
    pods: list[PodFile] = Field(min_length=2, max_length=MOST_PODS)
    link: LinkFile | None = None


def load_pods(path: str) -> PodsFile:
    """The cluster in a file."""
    return load_yaml(path, PodsFile)


@dataclass(frozen=True)
class Pods:
    """The same run on each pod alone, and what joins them."""

    runs: tuple[Run, ...]
    link: Level | None

    def __str__(self) -> str:
        return " + ".join(f"{run.devices:,} {run.gpu.name}" for run in self.runs)

    @property
    def given(self) -> str:
        """All that an answer holds for, in words."""
        link = "parts of one network"
        if self.link is not None:
            rate = format_bandwidth(self.link.bandwidth_Bps)
            link = f"joined by {rate} per device and direction"
        machines = " and ".join(run.machine for run in self.runs)
        return self.runs[0].given_on(f"{machines}, {link}")

    def orders(self) -> list[tuple[int, ...]]:
        """Every choice of two pods or more, in every order that differs."""
        kinds = [self.runs.index(run) for run in self.runs]
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        numbers = range(len(self.runs))
        for some in (c for n in numbers for c in combinations(numbers, n + 1) if n):
            for order in permutations(some):
                found.setdefault(tuple(kinds[i] for i in order), order)
        return list(found.values())

    def alike(self, some: Sequence[int]) -> bool:
        """Whether these have the same devices on the same network."""
        first = self.runs[some[0]]
        return all(
            self.runs[i].gpu == first.gpu and self.runs[i].network == first.network for i in some
        )

    def together(self, some: Sequence[int], crossed: bool) -> tuple[Run, ...]:
        """The run on all devices of these pods, as each of them is equipped. Where groups of ranks
        lie across pods (`crossed`), their messages beyond a node go at the pace of the slowest
        pod's network, and of the link.
        """
        runs = [self.runs[i] for i in some]
        sizes = [run.devices for run in runs]
        outer = [run.network.levels[-1] for run in runs]
        slowest = min(outer, key=lambda level: (_best_Bps(level), -level.latency_s))
        return tuple(
            replace(run, devices=sum(sizes), network=self._joined(run.network, slowest, sizes))
            if crossed
            else replace(run, devices=sum(sizes), network=self._wide(run.network, sum(sizes)))
            for run in runs
        )

    def _wide(self, network: Network, devices: int) -> Network:
        """With a link between pods, levels of their networks reach as far as that."""
        *inner, outer = network.levels
        if self.link is not None:
            outer = replace(outer, devices=max(outer.devices, devices))
        return replace(network, levels=(*inner, outer))

    def _joined(self, network: Network, slowest: Level, sizes: Sequence[int]) -> Network:
        *inner, outer = self._wide(network, sum(sizes)).levels
        if slowest != network.levels[-1]:
            inner = inner or [outer]
            outer = replace(slowest, devices=outer.devices)
        if self.link is None:
            return replace(network, levels=(*inner, outer))
        link = replace(
            self.link,
            devices=sum(sizes),
            across=min(sizes),
            latency_s=max(0.0, self.link.latency_s - outer.latency_s),  # of a way that it lengthens
        )
        return replace(network, levels=(*inner, outer, link))


def _best_Bps(level: Level) -> float:
    return level.bandwidth_Bps * level.best_share


def pods_of(file: PodsFile, run: Run, stack: bool) -> Pods:
    """The pods of a file, for a run on the device of the first; `stack`: whether its software was
    named, rather than the device's.
    """
    runs = []
    for number, pod in enumerate(file.pods, start=1):
        gpu = load_device(pod.device)
        network = load_network(pod.network or gpu.network)
        if any(level.torus for level in network.levels):
            raise AtollError(
                f"pod {number}: {network.name} is a torus, and pods that are slices of one are not "
                "modelled; plan them as one with --network"
            )
        if gpu.stack != run.gpu.stack and not stack:
            raise AtollError(
                f"pod {number}: {gpu.name} usually runs {gpu.stack}, {run.gpu.name} "
                f"{run.gpu.stack}; one software runs all pods: name it with --stack"
            )
        gpu.peak_flops(run.precision)
        runs.append(replace(run, gpu=gpu, network=network, devices=pod.devices))
        most = network.levels[-1].devices
        total = pod.devices if file.link else sum(p.devices for p in file.pods)
        if total > most:
            way_out = "" if file.link else ", or say the link between the pods"
            raise AtollError(
                f"pod {number}: network {network.name} ends at {most:,} devices, but {total:,} are "
                f"on it; choose a larger one{way_out}"
            )
    return Pods(tuple(runs), _link(file))


def _link(file: PodsFile) -> Level | None:
    given = file.link
    if given is None:
        return None
    each = given.bandwidth or (given.total or 0.0) / min(pod.devices for pod in file.pods)
    curve = ((1.0, given.efficiency),) if given.efficiency < 1 else ()
    return Level("link", 0, each, given.latency, curve)
