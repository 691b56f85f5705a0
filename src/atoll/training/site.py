"""A site: how a user's machines and software differ from the catalogue.

`atoll calibrate` writes one from measured runs, a profile or NCCL's tests; `estimate`, `plan` and
`validate` read it. Every value has its 90 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from atoll.fabric.network import Network
from atoll.files.atomic_file import atomic_files
from atoll.files.yamlfile import MOST, FileModel, load_yaml
from atoll.tools.stack import STACKS, Overlap, Stack

Attention = Literal["flash", "flex", "flash2", "flash1", "unfused"]
HOST_TIMES = (
    "host_layer_s", "host_kernel_s", "host_checkpoint_s", "host_expert_s", "host_routed_s",
    "host_module_s", "host_gather_s", "host_tensor_s",
)  # fmt: skip
"""Host times of a stack, without the fixed time per step."""
KINDS = ("gradient", "gather", "tensor", "tensor_products", "pipeline", "experts")
"""Overlaps that a site may change; rings are measured with attention."""
MOST_HIDDEN = 0.97
"""Largest hidden share of communication before a site's odds apply."""
LEAST = 1e-9
"""Smallest factor, and smallest seconds."""
MOST_LOG = 21.0
"""Largest logarithm of a factor."""


class ValueInterval(FileModel):
    """A value with its 90 % interval."""

    value: float
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value:g} does not lie between {self.low:g} and {self.high:g}")
        return self


def _interval(value: Any) -> Any:
    """Read a plain number as an exact value."""
    if isinstance(value, int | float):
        return {"value": value, "low": value, "high": value}
    return value


class FactorInterval(ValueInterval):
    value: float = Field(ge=LEAST, le=1 / LEAST)
    low: float = Field(ge=LEAST, le=1 / LEAST)
    high: float = Field(ge=LEAST, le=1 / LEAST)


class ShareInterval(ValueInterval):
    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)


Factor = Annotated[FactorInterval, BeforeValidator(_interval)]
Share = Annotated[ShareInterval, BeforeValidator(_interval)]


class LevelFactors(FileModel):
    """Factors on the catalogue's network, by level."""

    inside: Factor | None = None
    """The innermost level, in a node."""
    between: Factor | None = None
    """All further levels."""

    def factor(self, level: int) -> float:
        factor = self.between if level else self.inside
        return 1.0 if factor is None else factor.value


class Overlaps(FileModel):
    """Shares of communication that may hide behind computation."""

    odds: Factor | None = None
    """Factor on the odds, share / (1 - share), of the shares not set here."""
    gradient: Share | None = None
    gather: Share | None = None
    tensor: Share | None = None
    tensor_products: Share | None = None
    pipeline: Share | None = None
    experts: Share | None = None

    def on_stack(self, stack: Overlap) -> Overlap:
        """Return a stack's overlaps at this site. Shares of 0 stay 0, fitted ones below 1."""
        shares = {}
        for name in KINDS:
            site_share, share = getattr(self, name), getattr(stack, name)
            if site_share is not None:
                shares[name] = site_share.value
            elif self.odds is not None and share:
                most = min(share, MOST_HIDDEN)
                odds = self.odds.value * most / (1 - most)
                shares[name] = odds / (1 + odds)
        return replace(stack, **shares)


class RunError(FileModel):
    """Error of a measured run of a site, predicted from its other runs."""

    log: float = Field(ge=-MOST_LOG, le=MOST_LOG)
    """Logarithm of measured over predicted step time."""
    shares: Mapping[str, float]
    """Shares of the step that causes of errors act on (`uncertainty.time_shares`)."""


class Site(FileModel):
    """Fitted or measured values; all others are those of the catalogue and the stack."""

    name: str = Field(min_length=1)
    source: str = ""
    stack: str | None = None
    """The stack that fits best, if runs do not state theirs."""
    attention: Attention | None = None
    slack: Factor | None = None
    """Factor on the stack's slack: step time over the sum of its parts."""
    host: Factor | None = None
    """Factor on the stack's host times."""
    host_kernel_s: Factor | None = None
    """Host seconds per kernel launch; replaces the stack's host times."""
    overlap: Overlaps = Overlaps()
    bandwidth: LevelFactors = LevelFactors()
    latency: LevelFactors = LevelFactors()
    runs: int = Field(default=0, ge=0, le=MOST)
    """Measured runs in the fit."""
    error: float | None = Field(default=None, ge=0, le=1 / LEAST)
    """Mean error of the step time on these runs, each predicted from the others."""
    reach: float | None = Field(default=None, ge=0, le=1 / LEAST)
    """Half width of the 90 % interval of the logarithm of measured over predicted step times;
    replaces the one that follows from `errors`."""
    errors: tuple[RunError, ...] = ()
    """Errors of the measured runs, which update the distributions of the causes of errors."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stack is not None:
            STACKS[self.stack]  # raises an error if it does not exist
        if self.host is not None and self.host_kernel_s is not None:
            raise ValueError("host and host_kernel_s exclude one another")
        return self

    def on_stack(self, stack: Stack) -> Stack:
        """Return the stack with this site's host times, overlaps and slack."""
        changed: dict[str, Any] = {}
        if self.host is not None:
            times = (*HOST_TIMES, "step_s")
            changed = {name: getattr(stack, name) * self.host.value for name in times}
        if self.host_kernel_s is not None:
            changed = dict.fromkeys(HOST_TIMES, 0.0) | {"host_kernel_s": self.host_kernel_s.value}
        if self.slack is not None:
            changed["slack"] = stack.slack * self.slack.value
        return replace(stack, **changed, overlap=self.overlap.on_stack(stack.overlap))

    def on_network(self, network: Network) -> Network:
        """Return the network with this site's bandwidths and latencies."""
        levels = tuple(
            replace(
                level,
                bandwidth_Bps=level.bandwidth_Bps * self.bandwidth.factor(i),
                latency_s=level.latency_s * self.latency.factor(i),
            )
            for i, level in enumerate(network.levels)
        )
        return replace(network, levels=levels)

    def save(self, path: str | Path) -> None:
        """Write the file that `load_site` reads."""
        values = _rounded(self.model_dump(exclude_none=True, exclude_defaults=True))
        text = "# Written by `atoll calibrate`; docs/calibrate.md says what every value means.\n"
        text += yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
        with atomic_files(lambda why: f"{path}: cannot be written ({why})", Path(path)) as (part,):
            part.write_text(text, encoding="utf-8")


def _rounded(values: Any) -> Any:
    """Round numbers to four digits."""
    if isinstance(values, dict):
        return {name: _rounded(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    return float(f"{values:.4g}") if isinstance(values, float) else values


def load_site(path: str | Path) -> Site:
    """Read a site's file."""
    return load_yaml(path, Site)
