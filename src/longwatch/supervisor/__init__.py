"""Programs that stay up without restart storms: what an end means, when to try again, and a
supervisor that does it.

    with Supervisor([ProgramPlan.of("web", ["python", "app.py"])]) as supervisor:
        supervisor.status("web")

The layers, from values to the whole: `plan`, `probes`, `decision`, `lifecycle` and `dependencies`
decide; `run` is one run of a program, `program` its life, `post` its place among others;
`supervisor` holds them all, `commands` changes what is wanted of them; `ledger` remembers,
`control` and `presence` let others in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.core.backoff import Backoff as Backoff
    from longwatch.core.backoff import BackoffPolicy as BackoffPolicy
    from longwatch.core.breaker import Breaker as Breaker
    from longwatch.core.breaker import BreakerPolicy as BreakerPolicy
    from longwatch.host.process import Limits as Limits
    from longwatch.host.process import StopPolicy as StopPolicy
    from longwatch.supervisor.conditions import Condition as Condition
    from longwatch.supervisor.conditions import Readiness as Readiness
    from longwatch.supervisor.decision import Restart as Restart
    from longwatch.supervisor.decision import RestartPolicy as RestartPolicy
    from longwatch.supervisor.decision import Verdict as Verdict
    from longwatch.supervisor.decision import should_restart as should_restart
    from longwatch.supervisor.plan import ProgramPlan as ProgramPlan
    from longwatch.supervisor.probes import ExecProbe as ExecProbe
    from longwatch.supervisor.probes import HealthPolicy as HealthPolicy
    from longwatch.supervisor.probes import HeartbeatProbe as HeartbeatProbe
    from longwatch.supervisor.probes import HttpProbe as HttpProbe
    from longwatch.supervisor.probes import TcpProbe as TcpProbe
    from longwatch.supervisor.program import Streams as Streams
    from longwatch.supervisor.supervisor import Supervisor as Supervisor

_HOMES = {
    "Backoff": "longwatch.core.backoff",
    "BackoffPolicy": "longwatch.core.backoff",
    "Breaker": "longwatch.core.breaker",
    "BreakerPolicy": "longwatch.core.breaker",
    "Condition": "longwatch.supervisor.conditions",
    "ExecProbe": "longwatch.supervisor.probes",
    "HealthPolicy": "longwatch.supervisor.probes",
    "HeartbeatProbe": "longwatch.supervisor.probes",
    "HttpProbe": "longwatch.supervisor.probes",
    "Limits": "longwatch.host.process",
    "ProgramPlan": "longwatch.supervisor.plan",
    "Readiness": "longwatch.supervisor.conditions",
    "Restart": "longwatch.supervisor.decision",
    "RestartPolicy": "longwatch.supervisor.decision",
    "StopPolicy": "longwatch.host.process",
    "Streams": "longwatch.supervisor.program",
    "Supervisor": "longwatch.supervisor.supervisor",
    "TcpProbe": "longwatch.supervisor.probes",
    "Verdict": "longwatch.supervisor.decision",
    "should_restart": "longwatch.supervisor.decision",
}

__all__ = [
    "Backoff",
    "BackoffPolicy",
    "Breaker",
    "BreakerPolicy",
    "Condition",
    "ExecProbe",
    "HealthPolicy",
    "HeartbeatProbe",
    "HttpProbe",
    "Limits",
    "ProgramPlan",
    "Readiness",
    "Restart",
    "RestartPolicy",
    "StopPolicy",
    "Streams",
    "Supervisor",
    "TcpProbe",
    "Verdict",
    "should_restart",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
