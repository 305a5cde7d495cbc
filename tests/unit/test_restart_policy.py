from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longwatch.core.end_cause import NUMBERED_KINDS, EndCause, EndKind
from longwatch.supervisor.restart_policy import (
    RESTART_VERDICTS,
    STOP_VERDICTS,
    EndFacts,
    EndVerdict,
    Restart,
    RestartDecision,
    RestartPolicy,
    should_restart,
)

codes = st.integers(0, 255)
causes = st.one_of(
    codes.map(EndCause.exit),
    st.integers(1, 64).map(EndCause.signal),
    st.just(EndCause(EndKind.SPAWN_ERROR)),
)
policies = st.builds(
    RestartPolicy,
    restart=st.sampled_from(Restart),
    restart_codes=st.frozensets(codes, max_size=3),
    no_restart_codes=st.frozensets(codes, max_size=3),
)


def decided(
    cause: EndCause, *, policy: RestartPolicy | None = None, **facts: Any
) -> tuple[str, bool]:
    decision = (policy or RestartPolicy()).decide(cause, **facts)
    return decision.verdict.value, decision.restart


@pytest.mark.parametrize(
    ("code", "verdict", "restart"),
    [
        (0, "clean_exit", False),
        (1, "unexpected_exit", True),
        (2, "configuration_error", False),
        (3, "unexpected_exit", True),
        (99, "unexpected_exit", True),
        (100, "fatal_error_no_restart", False),
        (127, "fatal_error_no_restart", False),
        (128, "fatal_error_no_restart", False),
        (129, "unexpected_exit", True),  # SIGHUP
        (130, "intentional_signal", False),  # SIGINT
        (137, "unexpected_exit", True),  # SIGKILL
        (139, "unexpected_exit", True),  # SIGSEGV
        (143, "intentional_signal", False),  # SIGTERM
        (144, "unexpected_exit", True),  # SIGSTKFLT
        (145, "fatal_error_no_restart", False),  # SIGCHLD ends no process
        (146, "fatal_error_no_restart", False),  # SIGCONT
        (147, "fatal_error_no_restart", False),  # SIGSTOP
        (148, "fatal_error_no_restart", False),  # SIGTSTP
        (149, "fatal_error_no_restart", False),  # SIGTTIN
        (150, "fatal_error_no_restart", False),  # SIGTTOU
        (151, "fatal_error_no_restart", False),  # SIGURG
        (152, "unexpected_exit", True),  # SIGXCPU
        (155, "unexpected_exit", True),  # SIGPROF
        (156, "fatal_error_no_restart", False),  # SIGWINCH
        (157, "unexpected_exit", True),  # SIGIO
        (192, "unexpected_exit", True),  # the last signal
        (193, "fatal_error_no_restart", False),
        (255, "fatal_error_no_restart", False),
    ],
)
def test_an_exit_code_is_judged_by_the_table(code: int, verdict: str, *, restart: bool) -> None:
    assert (verdict, restart) == decided(EndCause.exit(code))
    assert restart is should_restart(code)


@pytest.mark.parametrize(
    ("number", "verdict", "restart"),
    [
        (signal.SIGHUP, "unexpected_exit", True),
        (signal.SIGINT, "intentional_signal", False),
        (signal.SIGKILL, "unexpected_exit", True),
        (signal.SIGSEGV, "unexpected_exit", True),
        (signal.SIGTERM, "intentional_signal", False),
        (64, "unexpected_exit", True),
    ],
)
def test_a_signal_is_judged_by_the_table(number: int, verdict: str, *, restart: bool) -> None:
    assert (verdict, restart) == decided(EndCause.signal(number))
    assert restart is should_restart(signal=number)


def test_a_start_that_failed_is_tried_again() -> None:
    assert ("spawn_error", True) == decided(EndCause(EndKind.SPAWN_ERROR))
    assert should_restart()


@given(number=st.integers(1, 64))
def test_a_shell_that_reports_a_signal_is_judged_like_the_signal(number: int) -> None:
    """Exit 128 + n is judged as signal n, for every signal that can end a process."""
    assume(number not in {*range(signal.SIGCHLD, signal.SIGURG + 1), signal.SIGWINCH})
    assert decided(EndCause.signal(number)) == decided(EndCause.exit(128 + number))


UNEXPECTED = ("unexpected_exit", True)


@pytest.mark.parametrize(
    ("cause", "joined", "finished", "expected"),
    [
        (EndCause.exit(0), True, True, ("clean_exit", False)),
        (EndCause.exit(0), True, False, UNEXPECTED),  # os._exit(0), or SIGTERM from outside
        (EndCause.exit(0), False, False, UNEXPECTED),
        (EndCause.exit(2), False, False, ("configuration_error", False)),
        (EndCause.exit(2), True, False, UNEXPECTED),  # os._exit(2) in a handler
        (EndCause.exit(2), True, True, ("configuration_error", False)),  # its store refused it
        (EndCause.exit(100), False, False, ("fatal_error_no_restart", False)),
        (EndCause.exit(100), True, False, UNEXPECTED),
        (EndCause.exit(100), True, True, ("fatal_error_no_restart", False)),
        (EndCause.exit(1), True, True, UNEXPECTED),
        (EndCause.exit(143), True, False, UNEXPECTED),
        (EndCause.signal(signal.SIGTERM), False, False, UNEXPECTED),
        (EndCause.signal(signal.SIGKILL), True, False, UNEXPECTED),
        (EndCause(EndKind.SPAWN_ERROR), False, False, ("spawn_error", True)),
    ],
)
def test_a_worker_that_ends_unasked_is_replaced(
    cause: EndCause, expected: tuple[str, bool], *, joined: bool, finished: bool
) -> None:
    """Only an end that the process reported, or that came before it had joined, is final."""
    facts = EndFacts(has_joined=joined, has_finished=finished)
    assert expected == decided(cause, facts=facts)
    assert ("stopped", False) == decided(cause, facts=facts, stop_requested=True)


@given(cause=causes)
def test_what_we_killed_because_it_was_sick_is_started_again_whatever_it_says(
    cause: EndCause,
) -> None:
    assert ("health_check_restart", True) == decided(cause, killed_unhealthy=True)


@given(cause=causes, policy=policies, unhealthy=st.booleans())
def test_what_is_not_wanted_is_never_started_again(
    cause: EndCause, policy: RestartPolicy, *, unhealthy: bool
) -> None:
    assert ("stopped", False) == decided(
        cause, policy=policy, stop_requested=True, killed_unhealthy=unhealthy
    )


@given(cause=causes, policy=policies, stop_requested=st.booleans(), unhealthy=st.booleans())
def test_nothing_is_started_again_while_we_shut_down(
    cause: EndCause, policy: RestartPolicy, *, stop_requested: bool, unhealthy: bool
) -> None:
    facts = {"shutting_down": True, "stop_requested": stop_requested, "killed_unhealthy": unhealthy}
    assert ("shutdown_complete", False) == decided(cause, policy=policy, **facts)


@given(cause=causes, unhealthy=st.booleans())
def test_always_and_never_overrule_the_table_but_not_its_verdict(
    cause: EndCause, *, unhealthy: bool
) -> None:
    verdict, _ = decided(cause, killed_unhealthy=unhealthy)
    assert (verdict, True) == decided(
        cause, policy=RestartPolicy(restart=Restart.ALWAYS), killed_unhealthy=unhealthy
    )
    assert (verdict, False) == decided(
        cause, policy=RestartPolicy(restart=Restart.NEVER), killed_unhealthy=unhealthy
    )


@given(code=codes, restart=st.sampled_from(Restart))
def test_a_listed_code_overrules_the_policy(code: int, restart: Restart) -> None:
    again = RestartPolicy(restart=restart, restart_codes=[code])
    final = RestartPolicy(restart=restart, no_restart_codes=[code])
    assert again.decide(EndCause.exit(code)).restart
    assert not final.decide(EndCause.exit(code)).restart


@given(code=codes, restart=st.sampled_from(Restart))
def test_a_code_in_both_lists_is_final(code: int, restart: Restart) -> None:
    policy = RestartPolicy(restart=restart, restart_codes=[code], no_restart_codes=[code])
    assert not policy.decide(EndCause.exit(code)).restart


def test_a_list_of_codes_speaks_of_exits_and_not_of_signals() -> None:
    policy = RestartPolicy(restart_codes=[15], no_restart_codes=[9])
    assert not policy.decide(EndCause.signal(15)).restart
    assert policy.decide(EndCause.signal(9)).restart


@given(
    cause=causes,
    policy=policies,
    shutting_down=st.booleans(),
    stop_requested=st.booleans(),
    killed_unhealthy=st.booleans(),
)
def test_should_restart_says_what_the_policy_decides(
    cause: EndCause,
    policy: RestartPolicy,
    *,
    shutting_down: bool,
    stop_requested: bool,
    killed_unhealthy: bool,
) -> None:
    facts: dict[str, Any] = {
        "shutting_down": shutting_down,
        "stop_requested": stop_requested,
        "killed_unhealthy": killed_unhealthy,
    }
    code = cause.number if cause.kind is EndKind.EXIT else None
    number = cause.number if cause.kind is EndKind.SIGNAL else None
    assert policy.decide(cause, **facts).restart is should_restart(
        code, number, policy=policy, **facts
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in EndKind if kind not in NUMBERED_KINDS | {EndKind.SPAWN_ERROR}]
)
def test_every_other_end_is_unexpected(kind: EndKind) -> None:
    assert RestartDecision(EndVerdict.UNEXPECTED_EXIT, restart=True) == RestartPolicy().decide(
        EndCause(kind)
    )


def test_the_verdicts_are_the_events_of_the_table() -> None:
    words = """shutdown_complete stopped health_check_restart clean_exit configuration_error
        fatal_error_no_restart intentional_signal unexpected_exit spawn_error"""
    assert words.split() == [verdict.value for verdict in EndVerdict]
    assert not RESTART_VERDICTS & STOP_VERDICTS
