from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.plan import child_environment

environments = st.dictionaries(st.text(min_size=1), st.text(), max_size=8)
OURS_ALONE = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "PIDFILE",
]


def test_what_addresses_us_alone_is_withheld() -> None:
    ours = {"LONGWATCH_OWNER": "x", "LONGWATCH_STATE_DIR": "/s", **dict.fromkeys(OURS_ALONE, "1")}
    assert {"MANAGED_BY": "longwatch"} == child_environment(ours)


def test_all_else_passes_through() -> None:
    ours = {
        "PATH": "/bin",
        "PORT": "8080",
        "DEBUG": "1",
        "HEALTH_CHECK_ENABLED": "no",
        "LONGWATCHER": "1",
        "MY_LONGWATCH_X": "2",
    }
    assert {**ours, "MANAGED_BY": "longwatch"} == child_environment(ours)


def test_what_was_asked_for_wins_over_ours_and_may_name_anything() -> None:
    found = child_environment(
        {"PORT": "1", "A": "a"},
        {"PORT": "2", "LONGWATCH_STATE_DIR": "/mine", "NOTIFY_SOCKET": "@s"},
    )
    assert {
        "PORT": "2",
        "A": "a",
        "LONGWATCH_STATE_DIR": "/mine",
        "NOTIFY_SOCKET": "@s",
        "MANAGED_BY": "longwatch",
    } == found


@given(ours=environments, extra=environments)
def test_who_manages_it_is_always_said_and_nothing_given_is_changed(
    ours: dict[str, str], extra: dict[str, str]
) -> None:
    before = dict(ours), dict(extra)
    found = child_environment(ours, extra)
    assert "longwatch" == found["MANAGED_BY"]
    assert {**extra, "MANAGED_BY": "longwatch"}.items() <= found.items()
    assert before == (ours, extra)
