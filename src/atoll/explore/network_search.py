"""Links and topology as variables: one search per network, against the best score so far.

Link bandwidth changes area, edge, power and price of a chip and, with the topology, the time of
communication; nothing else. So every pair of bandwidth and topology is a separate space with its
network. They are searched in the order of their roofline bounds; most are ruled out by an earlier
score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from atoll.base.errors import AtollError
from atoll.base.units import counted
from atoll.explore.answer.scope import SearchScope, described_space, is_linked
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.certificate import CONSTRAINTS, certificate_of
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import AIMS
from atoll.explore.strategies import STRATEGIES
from atoll.fabric.topology import parse_topology
from atoll.questions import SearchQuestion
from atoll.step.certificate import Certificate

MOST_NETWORKS = 64


def network_jobs(job: SearchQuestion) -> tuple[SearchQuestion, ...]:
    """Return the job on every network that its space lists, or the job where it has one."""
    if job.network is not None or not is_linked(job):
        return (job,)
    space = described_space(job)
    pairs = list(product(space.axes.values["link_Bps"], map(parse_topology, space.topologies)))
    if len(pairs) > MOST_NETWORKS:
        raise AtollError(
            f"space {space.name}: links and topology make {len(pairs)} networks, and at most "
            f"{MOST_NETWORKS} are searched: shorten a list."
        )
    several = {
        "pareto": job.pareto,
        "robust": job.robust > 0,
        "strategy": not STRATEGIES[job.strategy].proves,
        "objective": len(job.models) > 1 and AIMS[job.objective].relative,
    }
    for name, requested in several.items():
        if requested and len(pairs) > 1:
            raise AtollError(
                f"job: {name}: not over several networks; name one of them, such as "
                f"network: {pairs[0][1].named(pairs[0][0])}."
            )
    return tuple(job.changed(network=topology.named(link_Bps)) for link_Bps, topology in pairs)


def search_networks(searches: Sequence[Search | None]) -> tuple[int, Search] | None:
    """Search all networks as far as time allows; return the number and search of the best."""
    score, best = 0.0, None
    feasible = {number: search for number, search in enumerate(searches) if search is not None}
    for number in sorted(feasible, key=lambda number: -feasible[number].bound()):
        search = feasible[number]
        if search.stop():
            break
        search.score = score
        exact_search(search)
        if search.best is not None:
            score, best = search.score, (number, search)
    return best


def rejection_proof(search: Search | None, items: int, gap: float, score: float) -> Certificate:
    """Return the proof for a network that another network beats with this score."""
    if search is not None:
        return certificate_of(search, search.outcome(), gap, score)
    return Certificate(score, 0.0, gap, items, "architecture", 0, {CONSTRAINTS: items})


@dataclass(frozen=True)
class RejectedNetworks:
    """The proofs of the networks that were not chosen."""

    certificates: tuple[Certificate, ...] = ()
    networks: tuple[str, ...] = ()
    """All networks that were searched, and those on which no chip keeps to the limits."""
    infeasible: tuple[str, ...] = ()

    def joined(self, certificate: Certificate) -> Certificate:
        """Extend the proof over the chosen network to all networks."""
        proofs = (certificate, *self.certificates)
        rules = dict.fromkeys(rule for proof in proofs for rule in proof.ruled_out)
        return replace(
            certificate,
            bound=max(proof.bound for proof in proofs),
            items=sum(proof.items for proof in proofs),
            evaluated=sum(proof.evaluated for proof in proofs),
            ruled_out={name: sum(p.ruled_out.get(name, 0) for p in proofs) for name in rules},
            tightened=sum(proof.tightened for proof in proofs),
            peak_bound=max(proof.peak_bound for proof in proofs),
        )

    def noted(self, scope: SearchScope) -> SearchScope:
        """Add the networks to the notes of the scope."""
        if not self.networks:
            return scope
        networks, infeasible = ", ".join(self.networks), ", ".join(self.infeasible)
        notes = [f"chosen among {counted(len(self.networks), 'network')}: {networks}"]
        if infeasible:
            notes.append(f"no chip keeps to the limits with links of {infeasible}")
        designs = scope.designs + sum(proof.items for proof in self.certificates)
        return replace(scope, designs=designs, notes=(*scope.notes, *notes))
