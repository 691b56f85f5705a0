"""A site: how somebody's own machines and software differ from the catalogue.

`atoll calibrate` writes one from measured runs, a profile or NCCL's tests; `estimate`, `plan` and
`validate` take it. Every value has the interval that holds it with a probability of 90 %.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from atoll.fabric.network import Network
from atoll.files.wholefile import whole_files
from atoll.files.yamlfile import MOST, FileModel, load_yaml
from atoll.training.stack import STACKS, Overlap, Stack

Attention = Literal["flash", "flash2", "flash1", "unfused"]
HOST_TIMES = (
    "host_layer_s", "host_kernel_s", "host_checkpoint_s", "host_expert_s", "host_routed_s",
)  # fmt: skip
"""Of a stack, beside what it does once a step."""
KINDS = ("gradient", "gather", "tensor", "tensor_products", "pipeline", "experts")
"""Of overlaps that a site may change; rings are measured with the rest of attention."""
MOST_HIDDEN = 0.97
"""Of communication, where a stack would hide all."""


LEAST = 1e-9
"""Of a factor, and of seconds."""


class Known(FileModel):
    """A value within its interval."""

    value: float
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value:g} does not lie between {self.low:g} and {self.high:g}")
        return self


def _interval(value: Any) -> Any:
    """A plain number is exact."""
    if isinstance(value, int | float):
        return {"value": value, "low": value, "high": value}
    return value


class KnownFactor(Known):
    value: float = Field(ge=LEAST, le=1 / LEAST)
    low: float = Field(ge=LEAST, le=1 / LEAST)
    high: float = Field(ge=LEAST, le=1 / LEAST)


class KnownShare(Known):
    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)


Factor = Annotated[KnownFactor, BeforeValidator(_interval)]
Share = Annotated[KnownShare, BeforeValidator(_interval)]


class Levels(FileModel):
    """Factors on what the catalogue says of a network."""

    inside: Factor | None = None
    """In a node: the innermost level."""
    between: Factor | None = None
    """All others."""

    def of(self, level: int) -> float:
        known = self.between if level else self.inside
        return 1.0 if known is None else known.value


class Overlaps(FileModel):
    """Shares of communication that may hide behind computation, as stacks state them."""

    odds: Factor | None = None
    """On the odds, share to rest, of those that are not given."""
    gradient: Share | None = None
    gather: Share | None = None
    tensor: Share | None = None
    tensor_products: Share | None = None
    pipeline: Share | None = None
    experts: Share | None = None

    def of(self, stack: Overlap) -> Overlap:
        """Those of a stack, at this site. What nothing hides stays so; no share is quite whole once
        it was fitted.
        """
        found = {}
        for name in KINDS:
            known, share = getattr(self, name), getattr(stack, name)
            if known is not None:
                found[name] = known.value
            elif self.odds is not None and share:
                most = min(share, MOST_HIDDEN)
                odds = self.odds.value * most / (1 - most)
                found[name] = odds / (1 + odds)
        return replace(stack, **found)


class Site(FileModel):
    """What was fitted or measured; what was not is as the catalogue and the stack have it."""

    name: str = Field(min_length=1)
    source: str = ""
    stack: str | None = None
    """The software whose habits fit best, where runs do not state theirs."""
    attention: Attention | None = None
    slack: Factor | None = None
    """On the stack's own: time of a step over what its parts explain."""
    host: Factor | None = None
    """On the stack's host times."""
    host_kernel_s: Factor | None = None
    """Seconds: all host time of a step over its launches; replaces the stack's host times."""
    overlap: Overlaps = Overlaps()
    bandwidth: Levels = Levels()
    latency: Levels = Levels()
    runs: int = Field(default=0, ge=0, le=MOST)
    """Measured runs that it was fitted on."""
    error: float | None = Field(default=None, ge=0, le=1 / LEAST)
    """Mean error of the step time on these, each predicted from the others."""
    reach: float | None = Field(default=None, ge=0, le=1 / LEAST)
    """Logarithm within which 90 % of further step times lie of their prediction."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stack is not None:
            STACKS[self.stack]  # refused where it is not known
        if self.host is not None and self.host_kernel_s is not None:
            raise ValueError("host and host_kernel_s exclude one another")
        return self

    def on_stack(self, stack: Stack) -> Stack:
        """A stack with this site's host times, overlaps and slack."""
        changed: dict[str, Any] = {}
        if self.host is not None:
            times = (*HOST_TIMES, "step_s")
            changed = {name: getattr(stack, name) * self.host.value for name in times}
        if self.host_kernel_s is not None:
            changed = dict.fromkeys(HOST_TIMES, 0.0) | {"host_kernel_s": self.host_kernel_s.value}
        if self.slack is not None:
            changed["slack"] = stack.slack * self.slack.value
        return replace(stack, **changed, overlap=self.overlap.of(stack.overlap))

    def on_network(self, network: Network) -> Network:
        """A network at the bandwidths and latencies that are reached here."""
        levels = tuple(
            replace(
                level,
                bandwidth_Bps=level.bandwidth_Bps * self.bandwidth.of(i),
                latency_s=level.latency_s * self.latency.of(i),
            )
            for i, level in enumerate(network.levels)
        )
        return replace(network, levels=levels)

    def save(self, path: str | Path) -> None:
        """The file that `load_site` reads."""
        told = _rounded(self.model_dump(exclude_none=True, exclude_defaults=True))
        text = "# Written by `atoll calibrate`; docs/training.md says what every value means.\n"
        text += yaml.safe_dump(told, sort_keys=False, default_flow_style=None, width=100)
        with whole_files(lambda why: f"{path}: cannot be written ({why})", Path(path)) as (part,):
            part.write_text(text, encoding="utf-8")


def _rounded(told: Any) -> Any:
    """Numbers to the digits that any of them is worth."""
    if isinstance(told, dict):
        return {name: _rounded(value) for name, value in told.items()}
    return float(f"{told:.4g}") if isinstance(told, float) else told


def load_site(path: str | Path) -> Site:
    """A site's file."""
    return load_yaml(path, Site)
