"""The attempts of worker processes, as their parent keeps them: it has none of the code that
they compute.
"""

from __future__ import annotations

from collections.abc import Callable

from longwatch.engine.claim_source import GivenUp, ignore_given_up
from longwatch.flow.claim_source import FlowClaimSource


class FlowLeaseSource(FlowClaimSource):
    """Renews attempts by owner, and brings back what an owner had that has ended."""

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:  # noqa: ARG002
        """Only what needs no graphs. Of the sweeps that come in turns this would use up one in
        which a worker could go on with executions that it knows, and we do not.
        """
        return self.sweeper.reclaim_from_dead_owners()
