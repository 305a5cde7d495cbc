"""What a health endpoint answers to which path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus

from longwatch.core.health import Aspect, Report, Result
from longwatch.host.http_requests import JSON, TEXT, Answer

ASPECTS = {
    "/health": Aspect.LIVE,
    "/health/live": Aspect.LIVE,
    "/livez": Aspect.LIVE,
    "/healthz": Aspect.LIVE,
    "/health/ready": Aspect.READY,
    "/readyz": Aspect.READY,
    "/health/startup": Aspect.STARTED,
    "/startupz": Aspect.STARTED,
}
METRICS_PATH = "/metrics"
_PLAIN = {"/livez": "OK", "/healthz": "OK", "/readyz": "Ready", "/startupz": "Started"}
_HEALTHY = Answer(HTTPStatus.OK, b'{"status": "healthy"}')
_UNHEALTHY = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b'{"status": "unhealthy"}')


def answer_for(path: str, report: Report, *, verbose: bool) -> Answer:
    """The report, as this path tells it."""
    if path in _PLAIN:
        return _plain(_PLAIN[path], report, verbose=verbose)
    if not verbose:
        return _HEALTHY if report.ok else _UNHEALTHY
    told = {
        "status": "healthy" if report.ok else "unhealthy",
        "checks": [_fact(result) for result in report.results],
    }
    return Answer(_status(report), json.dumps(told).encode(), JSON)


def _plain(word: str, report: Report, *, verbose: bool) -> Answer:
    """The word alone; else the checks that fail, by name only unless more was asked for."""
    if verbose:
        lines = [
            f"{'[+]' if result.ok else '[-]'} {result.name}: {result.reason.value}"
            for result in report.results
        ]
        return _text(report, [*lines, word if report.ok else "failed"])
    return _text(
        report,
        [word]
        if report.ok
        else [f"{result.name}: {result.reason.value}" for result in report.failing],
    )


def _text(report: Report, lines: Sequence[str]) -> Answer:
    return Answer(_status(report), "\n".join(lines).encode(errors="backslashreplace"), TEXT)


def _fact(result: Result) -> dict[str, object]:
    return {"name": result.name, "ok": result.ok, "reason": result.reason.value}


def _status(report: Report) -> HTTPStatus:
    return HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
