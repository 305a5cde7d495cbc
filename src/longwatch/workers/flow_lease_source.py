"""The claim source with which a parent renews the attempts of flow workers, without the code of
their graphs.
"""

from __future__ import annotations

from collections.abc import Callable

from longwatch.engine.claim_source import GivenUp, ignore_given_up
from longwatch.flow.claim_source import FlowClaimSource


class FlowLeaseSource(FlowClaimSource):
    """Renews attempts by owner, and reclaims those of an ended owner."""

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:  # noqa: ARG002
        """Sweep only what needs no graph. Sweeps take turns: a full sweep here would use the turn
        of a worker that knows the graphs.
        """
        return self.sweeper.reclaim_from_dead_owners()
