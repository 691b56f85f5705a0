"""Links and topology as variables: one search for each network, held against the best so far.

Bandwidth of links changes area, edge, power and price of a chip and, with the topology, every time
that devices wait for each other; all else of the chips is alike. So each pair of the two is a space
of its own under its own network, opened by its rooflines, the highest first; most are ruled out by
what another one reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from atoll.errors import AtollError
from atoll.explore.answer.scope import Scope, described_space, is_linked
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.certified import CONSTRAINTS, certificate_of
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import AIMS
from atoll.explore.strategies import STRATEGIES
from atoll.fabric.topology import topology_of
from atoll.questions import SearchQuestion
from atoll.step.certificate import Certificate
from atoll.units import counted

MOST_NETWORKS = 64


def networks_of(job: SearchQuestion) -> tuple[SearchQuestion, ...]:
    """The job on each network that its space lists; itself where there is nothing to choose."""
    if job.network is not None or not is_linked(job):
        return (job,)
    space = described_space(job)
    pairs = list(product(space.axes.values["link_Bps"], map(topology_of, space.topologies)))
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
    for name, given in several.items():
        if given and len(pairs) > 1:
            raise AtollError(
                f"job: {name}: not over several networks; name one of them, such as "
                f"network: {pairs[0][1].named(pairs[0][0])}."
            )
    return tuple(job.changed(network=topology.named(link_Bps)) for link_Bps, topology in pairs)


def best_of(searches: Sequence[Search | None]) -> tuple[int, Search] | None:
    """Which of them has the best chip, all proven against it as far as there is time."""
    score, best = 0.0, None
    some = [(number, search) for number, search in enumerate(searches) if search is not None]
    for number, search in sorted(some, key=lambda one: -one[1].bound()):
        if search.stop():
            break
        search.score = score
        exact_search(search)
        if search.best is not None:
            score, best = search.score, (number, search)
    return best


def rejected(search: Search | None, items: int, tolerance: float, score: float) -> Certificate:
    """What was proven of a network that another one beats with this score."""
    if search is not None:
        return certificate_of(search, search.outcome(), tolerance, score)
    return Certificate(score, 0.0, tolerance, items, "architecture", 0, {CONSTRAINTS: items})


@dataclass(frozen=True)
class Rest:
    """What was proven of the networks that were not taken."""

    certificates: tuple[Certificate, ...] = ()
    networks: tuple[str, ...] = ()
    """All that were searched; and those that no chip keeps to the limits with."""
    without: tuple[str, ...] = ()

    def joined(self, own: Certificate) -> Certificate:
        """A proof over all networks, from that over one."""
        every = (own, *self.certificates)
        rules = dict.fromkeys(rule for one in every for rule in one.ruled_out)
        return replace(
            own,
            bound=max(one.bound for one in every),
            items=sum(one.items for one in every),
            evaluated=sum(one.evaluated for one in every),
            ruled_out={rule: sum(one.ruled_out.get(rule, 0) for one in every) for rule in rules},
            tightened=sum(one.tightened for one in every),
            peak_bound=max(one.peak_bound for one in every),
        )

    def noted(self, scope: Scope) -> Scope:
        """With the networks in words."""
        if not self.networks:
            return scope
        notes = [f"chosen among {counted(len(self.networks), 'network')}: {_list(self.networks)}"]
        if self.without:
            notes.append(f"no chip keeps to the limits with links of {_list(self.without)}")
        more = sum(one.items for one in self.certificates)
        return replace(scope, designs=scope.designs + more, notes=(*scope.notes, *notes))


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
