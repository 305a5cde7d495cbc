"""The dashboards of deploy/grafana, written by `make reference`. `--check` only compares.

A panel that may be empty while all is well says so (`empty`). A test runs every query in a real
Prometheus.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana import Dashboard, Panel, as_json, stat

DIRECTORY = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
_JOBS = 'job=~"(.*/)?longwatch.*"'
RED_FROM_1 = ((None, "green"), (1.0, "red"))
RED_AT_0 = ((None, "red"), (1.0, "green"))
WAITING = ((None, "green"), (60.0, "orange"), (300.0, "red"))
"""Seconds that work waits. The alerts begin at 300."""


def quantiles(metric: str, by: str, selector: str, legend: str) -> dict[str, str]:
    """The median and the 95th percentile of a histogram, by a label."""
    rate = f"sum by ({by}, le) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return {
        f"{legend} median": f"histogram_quantile(0.5, {rate})",
        f"{legend} 95 %": f"histogram_quantile(0.95, {rate})",
    }


def rate(metric: str, by: str, selector: str = "@") -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def increase(metric: str, by: str, selector: str = "@") -> str:
    return f"sum by ({by}) (increase({metric}{{{selector}}}[$__rate_interval]))"


NONE_SO_FAR = "none so far"
_DESIRED = "on (job, instance, program) longwatch_program_desired{@} == 1"

OVERVIEW = Dashboard(
    name="overview",
    title="Longwatch: overview",
    variables={"instance": f"up{{{_JOBS}}}"},
    rows={
        "What is unhealthy": (
            stat(
                "Ready",
                "min(longwatch_health_ready{@})",
                thresholds=RED_AT_0,
                words={"0": "not ready", "1": "ready"},
                about="The worst of the chosen targets. /readyz of a target names what is missing.",
            ),
            stat(
                "Targets down",
                f"sum(1 - up{{{_JOBS},@}})",
                thresholds=RED_FROM_1,
            ),
            stat(
                "Programs down",
                f"count(longwatch_program_up{{@}} == 0 and {_DESIRED}) or vector(0)",
                thresholds=RED_FROM_1,
                about="Those that should run.",
            ),
            stat(
                "Breakers open",
                "sum(longwatch_program_breaker_open{@})",
                thresholds=RED_FROM_1,
                about="Longwatch does not restart these programs for now.",
            ),
            stat(
                "Dead letters",
                "sum(max by (mailbox) (longwatch_mailbox_dead{@})) or vector(0)",
                thresholds=((None, "green"), (1.0, "orange")),
            ),
            stat(
                "Alerts firing",
                'count(ALERTS{alertname=~"Longwatch.*",alertstate="firing"}) or vector(0)',
                thresholds=RED_FROM_1,
            ),
            Panel(
                title="Alerts",
                queries={"{{alertname}}": 'ALERTS{alertname=~"Longwatch.*"}'},
                kind="table",
                width=12,
                empty="no alert",
            ),
            Panel(
                title="Programs that are not ready",
                queries={"{{program}}": f"longwatch_program_ready{{@}} == 0 and {_DESIRED}"},
                kind="table",
                width=12,
                empty="all are ready",
            ),
        ),
        "Programs": (
            Panel(
                title="Programs",
                queries={
                    "{{instance}} should run": "sum by (instance) (longwatch_program_desired{@})",
                    "{{instance}} up": "sum by (instance) (longwatch_program_up{@})",
                    "{{instance}} ready": "sum by (instance) (longwatch_program_ready{@})",
                },
            ),
            Panel(
                title="Starts",
                queries={"{{program}}": increase("longwatch_program_starts_total", "program")},
                about="Many starts of one program are a crash loop.",
            ),
            Panel(
                title="Ends",
                queries={
                    "{{program}} {{verdict}}": increase(
                        "longwatch_program_ends_total", "program, verdict"
                    )
                },
            ),
            Panel(
                title="Memory",
                queries={"{{program}}": "sum by (program) (longwatch_program_memory_bytes{@})"},
                unit="bytes",
                about="Of the whole process tree. Pages that processes share count for each.",
            ),
            Panel(
                title="CPU",
                queries={"{{program}}": rate("longwatch_program_cpu_seconds_total", "program")},
                unit="percentunit",
                about="100 % is one core.",
            ),
            Panel(
                title="Events missing in the log",
                queries={"{{program}}": increase("longwatch_relay_dropped_total", "program")},
                about="Their parent fell behind.",
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Probes that fail",
                queries={
                    "{{program}} {{probe}}": increase(
                        "longwatch_probe_failures_total", "program, probe"
                    )
                },
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Breaker trips",
                queries={"{{program}}": increase("longwatch_breaker_trips_total", "program")},
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Container runtime",
                queries={"{{instance}}": "longwatch_container_runtime_up{@}"},
                empty="no containers",
            ),
        ),
        "Loops": (
            Panel(
                title="Age of the last heartbeat",
                queries={"{{loop}}": "max by (loop) (longwatch_heartbeat_age_seconds{@})"},
                unit="s",
                thresholds=((None, "green"), (650.0, "red")),
                about="At watchdog_threshold, by default 720 s, the process of the loop ends.",
            ),
            Panel(
                title="Processes that run a loop",
                queries={"{{loop}}": "sum by (loop) (longwatch_loop_running{@})"},
            ),
            Panel(
                title="Stalls and crashes",
                queries={
                    "{{loop}} stalled": increase("longwatch_watchdog_stalls_total", "loop"),
                    "{{program}} killed": increase("longwatch_worker_stalls_total", "program"),
                    "{{loop}} crashed": increase("longwatch_loop_crashes_total", "loop"),
                },
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Leases held",
                queries={"{{loop}}": "sum by (loop) (longwatch_leases_held{@})"},
            ),
            Panel(
                title="Leases lost",
                queries={
                    "{{loop}} {{reason}}": increase("longwatch_leases_lost_total", "loop, reason")
                },
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Outages of stores",
                queries={"{{loop}}": increase("longwatch_claim_source_failures_total", "loop")},
                empty=NONE_SO_FAR,
            ),
        ),
    },
)

_MAILBOX = '@,mailbox=~"$mailbox"'
_LOOP = '@,loop=~"$loop"'


def _messages(state: str) -> str:
    """Every target reads the same mailbox, so the largest value counts."""
    return f"max by (mailbox) (longwatch_mailbox_{state}{{{_MAILBOX}}})"


MAILBOXES = Dashboard(
    name="mailboxes",
    title="Longwatch: mailboxes",
    variables={
        "instance": "longwatch_mailbox_ready",
        "mailbox": "longwatch_mailbox_ready",
        "loop": "longwatch_loop_running",
    },
    rows={
        "Now": (
            stat("Ready", f"sum({_messages('ready')})"),
            stat("Delayed", f"sum({_messages('delayed')})"),
            stat("Leased", f"sum({_messages('leased')})"),
            stat(
                "Dead letters",
                f"sum({_messages('dead')})",
                thresholds=((None, "green"), (1.0, "orange")),
            ),
            stat(
                "Oldest message",
                f"max({_messages('oldest_age_seconds')})",
                unit="s",
                thresholds=WAITING,
                width=8,
            ),
        ),
        "Messages": (
            Panel(
                title="Ready",
                queries={"{{mailbox}}": _messages("ready")},
            ),
            Panel(
                title="Delayed and leased",
                queries={
                    "{{mailbox}} delayed": _messages("delayed"),
                    "{{mailbox}} leased": _messages("leased"),
                },
            ),
            Panel(
                title="Age of the oldest ready message",
                queries={"{{mailbox}}": _messages("oldest_age_seconds")},
                unit="s",
                thresholds=WAITING,
                about="If it grows there are too few workers, or none.",
            ),
            Panel(title="Dead letters", queries={"{{mailbox}}": _messages("dead")}),
            Panel(
                title="New dead letters",
                queries={
                    "{{mailbox}} {{reason}}": increase(
                        "longwatch_messages_dead_lettered_total", "mailbox, reason", _MAILBOX
                    )
                },
                empty=NONE_SO_FAR,
            ),
        ),
        "Loops": (
            Panel(
                title="Throughput",
                queries={
                    "{{loop}} received": rate("longwatch_mailbox_received_total", "loop", _LOOP),
                    "{{loop}} acknowledged": rate("longwatch_mailbox_acked_total", "loop", _LOOP),
                },
                unit="ops",
            ),
            Panel(
                title="Failures",
                queries={
                    "{{loop}} failed": rate("longwatch_mailbox_nacked_total", "loop", _LOOP),
                    "{{loop}} dead-lettered": rate(
                        "longwatch_mailbox_dead_lettered_total", "loop", _LOOP
                    ),
                },
                unit="ops",
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Duration of the work on a message",
                queries=quantiles("longwatch_handle_duration_seconds", "loop", _LOOP, "{{loop}}"),
                unit="s",
            ),
            Panel(
                title="Leases",
                queries={
                    "{{loop}} held": f"sum by (loop) (longwatch_leases_held{{{_LOOP}}})",
                    "{{loop}} renewed": rate("longwatch_leases_renewed_total", "loop", _LOOP),
                },
            ),
            Panel(
                title="Work done twice or given back",
                queries={
                    "{{loop}} too late": increase(
                        "longwatch_mailbox_stale_settlements_total", "loop", _LOOP
                    ),
                    "{{loop}} released": increase(
                        "longwatch_mailbox_released_total", "loop", _LOOP
                    ),
                },
                about="Too late: the lease had ended, so the work is done again.",
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Replies that could not be sent",
                queries={"{{loop}}": increase("longwatch_replies_failed_total", "loop", _LOOP)},
                empty=NONE_SO_FAR,
            ),
        ),
    },
)

_GRAPH = '@,graph=~"$graph"'
_NODE = f'{_GRAPH},node=~"$node"'


def _attempts(state: str) -> str:
    return f"max by (graph) (longwatch_flow_{state}{{{_GRAPH}}})"


def _ended(by: str, state: str) -> str:
    return increase("longwatch_flow_attempts_total", by, f'{_NODE},state="{state}"')


FLOWS = Dashboard(
    name="flows",
    title="Longwatch: flows",
    variables={
        "instance": "longwatch_flow_ready",
        "graph": "longwatch_flow_ready",
        "node": "longwatch_flow_attempts_total",
    },
    rows={
        "Now": (
            stat("Ready", f"sum({_attempts('ready')})", width=6),
            stat("Running", f"sum({_attempts('running')})", width=6),
            stat("Delayed", f"sum({_attempts('delayed')})", width=6),
            stat(
                "Oldest ready attempt",
                f"max({_attempts('oldest_ready_seconds')})",
                unit="s",
                thresholds=WAITING,
                width=6,
            ),
        ),
        "Attempts": (
            Panel(
                title="Backlog",
                queries={
                    "{{graph}} ready": _attempts("ready"),
                    "{{graph}} running": _attempts("running"),
                    "{{graph}} delayed": _attempts("delayed"),
                },
            ),
            Panel(
                title="Age of the oldest ready attempt",
                queries={"{{graph}}": _attempts("oldest_ready_seconds")},
                unit="s",
                thresholds=WAITING,
            ),
            Panel(
                title="Ended attempts",
                queries={
                    "{{graph}} {{state}}": rate(
                        "longwatch_flow_attempts_total", "graph, state", _NODE
                    )
                },
                unit="ops",
            ),
            Panel(
                title="Failed attempts",
                queries={"{{graph}} {{node}} {{cause}}": _ended("graph, node, cause", "failed")},
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Abandoned attempts",
                queries={"{{graph}} {{node}} {{cause}}": _ended("graph, node, cause", "abandoned")},
                about="They ended without a result, for example with their process.",
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Duration of an attempt",
                queries=quantiles(
                    "longwatch_flow_attempt_seconds", "graph, node", _NODE, "{{graph}} {{node}}"
                ),
                unit="s",
            ),
        ),
        "Workers": (
            Panel(
                title="Claims",
                queries={
                    "{{loop}} claimed": rate("longwatch_flow_claimed_total", "loop"),
                    "{{loop}} released": rate("longwatch_flow_released_total", "loop"),
                },
                unit="ops",
            ),
            Panel(
                title="Results that came too late",
                queries={"{{loop}}": increase("longwatch_flow_stale_settlements_total", "loop")},
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Sweeps",
                queries={"{{sweep}}": rate("longwatch_flow_sweep_seconds_count", "sweep")},
                unit="ops",
            ),
            Panel(
                title="Duration of a sweep",
                queries=quantiles("longwatch_flow_sweep_seconds", "sweep", "@", "{{sweep}}"),
                unit="s",
            ),
            Panel(
                title="Rows that sweeps changed",
                queries={"{{sweep}}": increase("longwatch_flow_sweep_rows_total", "sweep")},
                empty=NONE_SO_FAR,
            ),
            Panel(
                title="Sweeps that failed",
                queries={"{{sweep}}": increase("longwatch_flow_sweep_errors_total", "sweep")},
                empty=NONE_SO_FAR,
            ),
        ),
    },
)

_CLUSTER = '@,cluster=~"$cluster"'
_NOT_GOOD = 'status!="success"'
_CONNECTED = f"longwatch_runner_sse_connections_active{{{_CLUSTER}}}"


def _of_runner(metric: str, *labels: str, per: str = "ops") -> str:
    count = rate if per == "ops" else increase
    return count(f"longwatch_runner_{metric}_total", ", ".join(("cluster", *labels)), _CLUSTER)


RUNNER = Dashboard(
    name="runner",
    title="Longwatch: runner",
    variables={
        "instance": "longwatch_runner_up",
        "cluster": "longwatch_runner_events_received_total",
    },
    rows={
        "Now": (
            stat(
                "Sources connected",
                f"sum({_CONNECTED})",
                thresholds=RED_AT_0,
            ),
            stat(
                "Sources not connected",
                f"count({_CONNECTED} == 0) or vector(0)",
                thresholds=RED_FROM_1,
            ),
            stat(
                "Work breaker",
                "max(longwatch_runner_circuit_breaker_state{@})",
                thresholds=RED_FROM_1,
                words={"0": "closed", "1": "open"},
            ),
            stat("Events that wait", f"sum(longwatch_runner_queue_depth{{{_CLUSTER}}})"),
            stat("Agents that run", f"sum(longwatch_runner_agents_active{{{_CLUSTER}}})"),
            stat(
                "Failed runs",
                f"sum(increase(longwatch_runner_agents_completed_total{{{_CLUSTER},{_NOT_GOOD}}}"
                "[$__range]))",
                thresholds=((None, "green"), (1.0, "orange")),
                about="In the chosen time.",
            ),
        ),
        "Events": (
            Panel(
                title="Received events",
                queries={"{{cluster}} {{severity}}": _of_runner("events_received", "severity")},
                unit="ops",
            ),
            Panel(
                title="Filtered events",
                queries={"{{cluster}} {{reason}}": _of_runner("events_filtered", "reason")},
                unit="ops",
            ),
            Panel(
                title="Queue",
                queries={
                    "{{cluster}} queued": _of_runner("events_queued"),
                    "{{cluster}} run": _of_runner("events_dequeued"),
                },
                unit="ops",
            ),
            Panel(
                title="Events that wait",
                queries={
                    "{{cluster}}": f"sum by (cluster) (longwatch_runner_queue_depth{{{_CLUSTER}}})"
                },
                thresholds=((None, "green"), (800.0, "red")),
                about="The red line is 80 % of the default source_queue_size.",
            ),
            Panel(
                title="Lost events",
                queries={
                    "{{cluster}} dropped: {{reason}}": _of_runner(
                        "events_dropped", "reason", per="window"
                    ),
                    "{{cluster}} dropped: work breaker": _of_runner(
                        "circuit_breaker_events_dropped", per="window"
                    ),
                    "{{cluster}} expired": _of_runner("events_expired", per="window"),
                },
            ),
            Panel(
                title="Outages announced",
                queries={
                    "{{cluster}} {{alert}}": increase(
                        "longwatch_runner_alerts_total", "cluster, alert"
                    )
                },
                about="Those without a source are of the agent.",
            ),
        ),
        "Agent runs": (
            Panel(
                title="Runs",
                queries={
                    "{{cluster}} began": _of_runner("agents_spawned"),
                    "{{cluster}} {{status}}": _of_runner("agents_completed", "status"),
                },
                unit="ops",
            ),
            Panel(
                title="Duration of a run",
                queries=quantiles(
                    "longwatch_runner_agent_duration_seconds", "cluster", _CLUSTER, "{{cluster}}"
                ),
                unit="s",
            ),
            Panel(
                title="Runs that timed out",
                queries={"{{cluster}}": _of_runner("agents_timeout", per="window")},
            ),
        ),
        "Connections": (
            Panel(
                title="Connected",
                queries={
                    "{{cluster}}": f"max by (cluster) ({_CONNECTED})",
                },
            ),
            Panel(
                title="Reconnections",
                queries={
                    "{{cluster}} {{reason}}": _of_runner(
                        "sse_reconnections", "reason", per="window"
                    )
                },
            ),
            Panel(
                title="Duration of a connection",
                queries=quantiles(
                    "longwatch_runner_sse_connection_duration_seconds",
                    "cluster",
                    _CLUSTER,
                    "{{cluster}}",
                ),
                unit="s",
            ),
        ),
    },
)

DASHBOARDS = (OVERVIEW, MAILBOXES, FLOWS, RUNNER)


def texts() -> dict[Path, str]:
    """The text of every file."""
    return {
        DIRECTORY / f"{each.name}.json": json.dumps(as_json(each), indent=1) + "\n"
        for each in DASHBOARDS
    }


def main(arguments: list[str]) -> None:
    for path, text in texts().items():
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} differs from tools/dashboards.py; run make reference")


if __name__ == "__main__":
    main(sys.argv[1:])
