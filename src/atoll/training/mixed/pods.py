"""Clusters of pods, each with one kind of device on one network, and the link between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from pydantic import Field, model_validator

from atoll.base.errors import AtollError
from atoll.base.units import format_bandwidth
from atoll.fabric.network import FabricLevel, Network
from atoll.files.ranges import DeviceBandwidth, LatencySeconds
from atoll.files.yamlfile import DeviceCount, FileModel, Share, load_yaml
from atoll.hardware.catalog import load_network
from atoll.hardware.device import load_device
from atoll.questions.fields import DeviceName, NetworkName
from atoll.training.run import Run

MOST_PODS = 3  # the divisions of blocks among pods grow exponentially with the pods


class PodFile(FileModel):
    """A number of equal devices."""

    device: DeviceName
    devices: DeviceCount
    network: NetworkName | None = None  # the device's


class PodLinkFile(FileModel):
    """Link between pods per direction: bandwidth per device, or in total between two pods."""

    bandwidth: DeviceBandwidth | None = None
    total: DeviceBandwidth | None = None
    latency: LatencySeconds = 0.0
    efficiency: Share = 1.0

    @model_validator(mode="after")
    def _check_rates(self) -> PodLinkFile:
        if (self.bandwidth is None) == (self.total is None):
            raise ValueError("expected either bandwidth, of every device, or total")
        return self


class PodsFile(FileModel):
    """A cluster; without a link its pods are parts of one network."""

    name: str = ""
    pods: list[PodFile] = Field(min_length=2, max_length=MOST_PODS)
    link: PodLinkFile | None = None


def load_pods(path: str) -> PodsFile:
    """Read the cluster of a file."""
    return load_yaml(path, PodsFile)


@dataclass(frozen=True)
class Pods:
    """The run on each pod alone, and the link between pods."""

    runs: tuple[Run, ...]
    link: FabricLevel | None

    def __str__(self) -> str:
        return " + ".join(f"{run.devices:,} {run.gpu.name}" for run in self.runs)

    @property
    def given(self) -> str:
        """Description of the run's assumptions."""
        link = "parts of one network"
        if self.link is not None:
            rate = format_bandwidth(self.link.bandwidth_Bps)
            link = f"joined by {rate} per device and direction"
        machines = " and ".join(run.machine for run in self.runs)
        return self.runs[0].given_on(f"{machines}, {link}")

    def sizes(self, pods: Sequence[int]) -> tuple[int, ...]:
        """Return the devices per pod."""
        return tuple(self.runs[i].devices for i in pods)

    def orders(self) -> list[tuple[int, ...]]:
        """Return every choice of two or more pods in every distinct order."""
        kinds = [self.runs.index(run) for run in self.runs]
        orders: dict[tuple[int, ...], tuple[int, ...]] = {}
        for count in range(2, len(kinds) + 1):
            for chosen in combinations(range(len(kinds)), count):
                for order in permutations(chosen):
                    orders.setdefault(tuple(kinds[i] for i in order), order)
        return list(orders.values())

    def alike(self, pods: Sequence[int]) -> bool:
        """Return whether these pods have equal devices and networks."""
        machines = [(self.runs[i].gpu, self.runs[i].network) for i in pods]
        return all(machine == machines[0] for machine in machines)

    def combined_runs(self, pods: Sequence[int], crossed: bool) -> tuple[Run, ...]:
        """Return the run on all devices of these pods, once per pod's device. If groups of ranks
        span pods (`crossed`), messages beyond a node use the slowest pod's network and the link.
        """
        runs = [self.runs[i] for i in pods]
        sizes = self.sizes(pods)
        outer = [run.network.levels[-1] for run in runs]
        slowest = min(outer, key=lambda x: (x.bandwidth_Bps * x.best_share, -x.latency_s))
        networks = [
            self._joined(run.network, slowest, sizes)
            if crossed
            else self._wide(run.network, sum(sizes))
            for run in runs
        ]
        pairs = zip(runs, networks, strict=True)
        return tuple(replace(run, devices=sum(sizes), network=n) for run, n in pairs)

    def _wide(self, network: Network, devices: int) -> Network:
        """Extend the outer level over all devices if a link joins the pods."""
        *inner, outer = network.levels
        if self.link is not None:
            outer = replace(outer, devices=max(outer.devices, devices))
        return replace(network, levels=(*inner, outer))

    def _joined(self, network: Network, slowest: FabricLevel, sizes: Sequence[int]) -> Network:
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
            latency_s=max(0.0, self.link.latency_s - outer.latency_s),  # beyond the outer level
        )
        return replace(network, levels=(*inner, outer, link))


def make_pods(file: PodsFile, run: Run, stack: bool) -> Pods:
    """Create a file's pods for a run on the first device; `stack`: whether the user named it."""
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
            advice = "" if file.link else ", or say the link between the pods"
            raise AtollError(
                f"pod {number}: network {network.name} ends at {most:,} devices, but {total:,} are "
                f"on it; choose a larger one{advice}"
            )
    return Pods(tuple(runs), _link(file))


def _link(file: PodsFile) -> FabricLevel | None:
    link = file.link
    if link is None:
        return None
    bandwidth_Bps = link.bandwidth or (link.total or 0.0) / min(pod.devices for pod in file.pods)
    curve = ((1.0, link.efficiency),) if link.efficiency < 1 else ()
    return FabricLevel("link", 0, bandwidth_Bps, link.latency, curve)
