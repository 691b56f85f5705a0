"""What is proven of an answer, as data (`step.certificate`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

from atoll.answers.answer import Amount, Count, Number, build_from
from atoll.step.certificate import Certificate, most_better


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How good an answer is, and over what."""

    status: str
    """"optimal": none is better by more than the tolerance; "gap": that is not proven."""
    score: Amount
    bound: Amount
    """No other scores higher."""
    gap: Number
    """1 - score / bound."""
    most_better: Number
    """bound / score - 1."""
    tolerance: Amount
    over: str
    """What the proof is over, in words."""
    evaluated: Count
    pruned: Count
    pruned_by: Mapping[str, Count]
    """Items, by the bound that ruled them out."""
    tightened: Count
    peak_bound: Amount | None = None
    """No layout scores higher, searched or not: every product at the peak rate of a chip. None
    where that is not known."""
    sentence: str
    """What is proven, in words."""

    @classmethod
    def of(cls, certificate: Certificate, /, *sources: object, **more: Any) -> Self:
        """Convert a certificate, with further fields and sources of them (`build_from`)."""
        sentence = certificate.sentence()
        return build_from(
            cls,
            certificate,
            *sources,
            most_better=most_better(certificate.gap),
            pruned=sum(certificate.ruled_out.values()),
            pruned_by=dict(certificate.ruled_out),
            peak_bound=certificate.peak_bound if isfinite(certificate.peak_bound) else None,
            sentence=f"{sentence[0].upper()}{sentence[1:]}.",
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureProof(Proof):
    """Over chips or wafers."""

    architectures: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProof(Proof):
    """Over layouts of a training run."""

    layouts: Count
    proven: bool
    variants: Count
    too_large: Count
    too_slow: Count
    refused: Count
    """Layouts that the target of an export cannot run."""
    unseen: Count
    """Layouts that a search which ended early has not looked at."""
    estimated: Count
    bounded_per_s: Amount
    excluded: tuple[str, ...]
    """Values of axes that the space leaves out."""
    target: str
