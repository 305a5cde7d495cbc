"""The table of checks, in the order of the report."""

from __future__ import annotations

from longwatch.app.doctor.examination import Check
from longwatch.app.doctor.files import check_disks, check_fsync, check_logs, check_permissions
from longwatch.app.doctor.machine import check_clocks, check_kernel, check_limits, check_versions
from longwatch.app.doctor.stores import store_findings
from longwatch.app.doctor.subject import Subject, store_kind
from longwatch.app.doctor.surroundings import check_containers, check_ports, check_settings
from longwatch.app.doctor.timeouts import (
    check_groups,
    check_stops,
    check_supervisors,
    check_watchdogs,
)
from longwatch.core.masking import mask_text

CHECKS = (
    Check("versions", check_versions),
    Check("clocks", check_clocks),
    Check("kernel", check_kernel),
    Check("limits", check_limits),
    Check("disks", check_disks),
    Check("fsync", check_fsync),
    Check("permissions", check_permissions),
    Check("logs", check_logs),
    Check("settings", check_settings),
    Check("ports", check_ports),
    Check("containers", check_containers, 20.0),
    Check("stops", check_stops),
    Check("groups", check_groups, 60.0),
    Check("supervisors", check_supervisors),
    Check("watchdogs", check_watchdogs),
)
"""The checks of every machine. Each store has one more."""


def checks_of(subject: Subject) -> list[Check]:
    """All checks for a subject."""
    return [*CHECKS, *map(_store_check, subject.stores)]


def _store_check(url: str) -> Check:
    kind = store_kind(url)
    return Check(mask_text(url), lambda subject: store_findings(url, kind, subject.store_processes))
